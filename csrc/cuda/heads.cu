// rotary_embedding and fused_qk_norm_rope: routes and launches.
#include "heads.cuh"

namespace edge_ops {
namespace cuda {
namespace {

// Both operators, as the kernels see them.
struct Request {
  enum { kQueryIn, kQueryOut, kKeyIn, kKeyOut, kPositions, kTensors };

  const QkRope& op;
  const Tensor& first;  // query, or key where there is no query
  int64_t size, rotary_dim;
  int64_t position_strides[kMaxRank];
  Walk<kTensors> tokens;

  explicit Request(const QkRope& op_)
      : op(op_),
        first(op_.query.in.present() ? op_.query.in : op_.key.in),
        size(first.size(1)),
        rotary_dim(op_.cos_sin_cache.shape[1]) {
    const QkRope::Heads &query = op.query.in.present() ? op.query : op.key,
                        &key = op.key.in.present() ? op.key : op.query;
    const int rank = first.rank - 2;
    // One position a token in one dimension, or in the tokens' own.
    int64_t flat = op.positions.rank == rank ? 0 : op.positions.stride[0];
    for (int d = rank - 1; d >= 0; d--) {
      position_strides[d] = op.positions.rank == rank ? op.positions.stride[d] : flat;
      flat *= first.shape[d];
    }
    tokens = walk_rows<kTensors>(rank, first.shape,
                                 {query.in.stride, query.out.stride, key.in.stride, key.out.stride, position_strides});
  }

  bool rotates() const { return rotary_dim > 0 && op.cos_sin_cache.shape[0] > 0; }

  bool in_place() const {
    for (const QkRope::Heads* side : {&op.query, &op.key}) {
      if (side->in.present() && side->in.data != side->out.data) return false;
    }
    return true;
  }

  int64_t heads() const {
    return (op.query.in.present() ? op.query.in.size(2) : 0) + (op.key.in.present() ? op.key.in.size(2) : 0);
  }

  // Nothing to normalize, rotate or copy.
  bool is_empty() const {
    return tokens.count == 0 || heads() == 0 || size == 0 || (!op.normalize && !rotates() && in_place());
  }

  // The stride of dimension `level` from the innermost of the merged tokens.
  int64_t stride(int tensor, int level) const {
    return level < tokens.rank ? tokens.stride[tensor][tokens.rank - 1 - level] : 0;
  }

  bool aligned_by(const Tensor& t, int tensor, int64_t bytes) const {
    bool fits = aligned(t.data, bytes);
    for (const int64_t elements : {t.stride[t.rank - 2], stride(tensor, 0), stride(tensor, 1)}) {
      const int64_t step = elements * element_size(t.dtype);
      fits = fits && step % bytes == 0 && is_short(step);
    }
    return fits;
  }

  // Whether an index of one launch can reach every head of the inner level of tokens.
  bool is_indexable() const {
    const int64_t inner = tokens.rank == 2 ? tokens.run() : 1;
    return inner == 0 || (inner <= kMaxIndex && heads() <= kMaxIndex / inner);
  }

  // Whether loads of `vector` elements fit every tensor.
  bool vectors_fit(int vector) const {
    const auto bytes_of = [](int elements, DType dtype) -> int64_t {
      const int64_t bytes = elements * element_size(dtype);
      return bytes < 16 ? bytes : 16;
    };
    if (tokens.rank > 2) return false;
    const QkRope::Heads* sides[2] = {&op.query, &op.key};
    for (int s = 0; s < 2; s++) {
      if (!sides[s]->in.present()) continue;
      const int64_t bytes = bytes_of(vector, sides[s]->in.dtype);
      if (!aligned_by(sides[s]->in, 2 * s, bytes) || !aligned_by(sides[s]->out, 2 * s + 1, bytes)) return false;
      const Tensor& weight = sides[s]->weight;
      if (op.normalize && weight.present() && !aligned(weight.data, bytes_of(vector, weight.dtype))) return false;
    }
    const Tensor& cache = op.cos_sin_cache;
    const int64_t bytes = bytes_of(vector / 2, cache.dtype), item = element_size(cache.dtype);
    const int64_t position = element_size(op.positions.dtype);
    return is_short(stride(kPositions, 0) * position) && is_short(stride(kPositions, 1) * position) &&
           (!rotates() ||
            (aligned(cache.data, bytes) && cache.stride[0] * item % bytes == 0 && is_short(cache.stride[0] * item) &&
             cache.shape[0] <= INT32_MAX && rotary_dim / 2 * item % bytes == 0));
  }
};

// How a head lies in a group of lanes: which of the kernels.
struct Shape {
  int pieces = 0, lanes = 0, vector = 0;  // pieces 0: none of them fits
};

// The shape of a head with loads of `vector` elements.
Shape shape_for(const Request& request, int vector) {
  const bool interleaved = request.op.interleaved;
  const int64_t size = request.size, half = request.rotates() ? request.rotary_dim / 2 : 0;
  if ((vector != 4 && vector != 8) || !request.vectors_fit(vector) || !request.is_indexable()) return {};
  if (!request.op.normalize) {
    // Only the rotated part is read, which leaves the rest in place.
    if (vector != 4 || !request.in_place() || half == 0 || half % vector != 0 || half / vector > 32) return {};
    return {2, 0, vector};
  }
  const bool vectors_rotate = half % vector == 0 && (!interleaved || 2 * half % vector == 0);
  const bool halves = interleaved || 2 * half == size || 2 * half <= size / 2;
  if ((size == 64 || size == 128 || size == 256) && vectors_rotate && halves)
    return {2, static_cast<int>(size) / 2 / vector, vector};
  if (vector != 8 || size % 8 != 0 || !vectors_rotate) return {};
  if (size == 512 && halves) return {2, 32, 8};
  if (size <= 256) return {1, size <= 128 ? 16 : 32, 8};
  return {};
}

// Thresholds from benchmarks/results/gpu_sweep.json, by the elements that are read.
Plan plan_for(const Request& request) {
  const bool normalize = request.op.normalize;
  const int64_t elements = request.tokens.count * request.heads() * (normalize ? request.size : request.rotary_dim);
  Plan plan;
  if (normalize) {
    plan = elements < (1 << 17)   ? Plan{Plan::kRegisters, 4, 1, 128, Plan::kInChains}
           : elements < (1 << 18) ? Plan{Plan::kRegisters, 4, 1, 64, Plan::kInChains}
           : elements < (1 << 21) ? Plan{Plan::kRegisters, 8, 1, 128, Plan::kInChains}
           : elements < (1 << 22) ? Plan{Plan::kRegisters, 8, 2, 128, Plan::kInChains}
                                  : Plan{Plan::kRegisters, 8, 4, 128, Plan::kInChains};
  } else {
    plan = elements < (1 << 16)   ? Plan{Plan::kRegisters, 4, 1, 128, Plan::kInChains}
           : elements < (1 << 18) ? Plan{Plan::kRegisters, 4, 2, 128, Plan::kInChains}
           : elements < (1 << 20) ? Plan{Plan::kRegisters, 4, 2, 256, Plan::kInChains}
           : elements < (1 << 21) ? Plan{Plan::kRegisters, 4, 4, 128, Plan::kInChains}
           : elements < (3 << 20) ? Plan{Plan::kRegisters, 4, 2, 128, Plan::kInChains}
                                  : Plan{Plan::kRegisters, 4, 4, 256, Plan::kInChains};
  }
  if (shape_for(request, plan.elements).pieces != 0) return plan;
  // The other width may fit where this one does not; the narrow one takes one head a group.
  plan.elements = plan.elements == 4 ? 8 : 4;
  plan.repeats = 1;
  if (shape_for(request, plan.elements).pieces != 0) return plan;
  return {Plan::kAny, 1, 1, kAnyThreads, Plan::kInChains};
}

using Kernel = void (*)(Heads);

template <class T, bool kNormalize, int kPieces, int kLanes, int kVector>
Kernel kernel_by_heads(int heads) {
  switch (heads) {
    case 1:
      return heads_in_registers<T, kNormalize, kPieces, kLanes, kVector, 1>;
    case 2:
      return heads_in_registers<T, kNormalize, kPieces, kLanes, kVector, 2>;
    case 4:
      return heads_in_registers<T, kNormalize, kPieces, kLanes, kVector, 4>;
    default:
      return nullptr;
  }
}

// Narrow loads of normalized heads are for few heads, and there one a group is best.
template <class T, int kLanes>
Kernel narrow_kernel(int heads) {
  return heads == 1 ? heads_in_registers<T, true, 2, kLanes, 4, 1> : nullptr;
}

template <class T>
Kernel kernel_for(const Shape& shape, bool normalize, int heads) {
  if (!normalize) return kernel_by_heads<T, false, 2, 0, 4>(heads);
  if (shape.pieces == 1)
    return shape.lanes == 16 ? kernel_by_heads<T, true, 1, 16, 8>(heads) : kernel_by_heads<T, true, 1, 32, 8>(heads);
  if (shape.vector == 4)
    return shape.lanes == 8    ? narrow_kernel<T, 8>(heads)
           : shape.lanes == 16 ? narrow_kernel<T, 16>(heads)
                               : narrow_kernel<T, 32>(heads);
  switch (shape.lanes) {
    case 4:
      return kernel_by_heads<T, true, 2, 4, 8>(heads);
    case 8:
      return kernel_by_heads<T, true, 2, 8, 8>(heads);
    case 16:
      return kernel_by_heads<T, true, 2, 16, 8>(heads);
    default:
      return kernel_by_heads<T, true, 2, 32, 8>(heads);
  }
}

Rotation rotation_of(const Request& request) {
  const QkRope& op = request.op;
  Rotation r;
  r.positions = op.positions.data;
  r.positions_are_int64 = op.positions.dtype == DType::kInt64;
  r.position_token = bytes_of_stride(op.positions, request.stride(Request::kPositions, 0));
  r.position_outer = bytes_of_stride(op.positions, request.stride(Request::kPositions, 1));
  // Without a rotation the cache may be empty; some address stands for it.
  r.cache = request.rotates() ? op.cos_sin_cache.data : op.positions.data;
  r.cache_is_float32 = op.cos_sin_cache.dtype == DType::kFloat32;
  r.cache_stride = bytes_of_stride(op.cos_sin_cache, op.cos_sin_cache.stride[0]);
  r.cache_rows = request.rotates() ? static_cast<int32_t>(op.cos_sin_cache.shape[0]) : 0;
  r.half = request.rotates() ? static_cast<int32_t>(request.rotary_dim / 2) : 0;
  r.interleaved = op.interleaved;
  return r;
}

Side side_of(const Request& request, bool key) {
  const QkRope::Heads& heads = key ? request.op.key : request.op.query;
  const int in = key ? Request::kKeyIn : Request::kQueryIn, out = in + 1;
  Side side = {};
  if (!heads.in.present()) return side;
  side.in = heads.in.data;
  side.out = heads.out.data;
  side.weight = request.op.normalize && heads.weight.present() ? heads.weight.data : nullptr;
  side.weight_is_float32 = heads.weight.dtype == DType::kFloat32;
  side.in_token = bytes_of_stride(heads.in, request.stride(in, 0));
  side.in_outer = bytes_of_stride(heads.in, request.stride(in, 1));
  side.in_head = bytes_of_stride(heads.in, heads.in.stride[heads.in.rank - 2]);
  side.out_token = bytes_of_stride(heads.out, request.stride(out, 0));
  side.out_outer = bytes_of_stride(heads.out, request.stride(out, 1));
  side.out_head = bytes_of_stride(heads.out, heads.out.stride[heads.out.rank - 2]);
  side.heads = static_cast<int32_t>(heads.in.size(2));
  return side;
}

MeanSquare mean_of(const Request& request) {
  const float count = static_cast<float>(request.size);
  return {count, 1.0f / count, request.op.eps};
}

template <class T>
cudaError_t launch_registers(const Request& request, const Plan& plan, const Target& target) {
  const Shape shape = shape_for(request, plan.elements);
  if (shape.pieces == 0) return cudaErrorInvalidConfiguration;
  const Kernel kernel = kernel_for<T>(shape, request.op.normalize, plan.repeats);
  Heads op;
  op.rotation = rotation_of(request);
  op.size = static_cast<int32_t>(request.size);
  op.mean = mean_of(request);
  op.weight_offset = request.op.weight_offset;
  // Rotation alone passes the storage type's values on.
  op.round_normalized = request.op.round_normalized || !request.op.normalize;
  op.lane_bits = 0;
  const int64_t lanes = shape.lanes != 0 ? shape.lanes : op.rotation.half / shape.vector;
  while ((int64_t{1} << op.lane_bits) < lanes) op.lane_bits++;
  const int64_t groups = plan.threads >> op.lane_bits;  // a block
  if (kernel == nullptr || plan.threads % 32 != 0 || plan.threads > 512) return cudaErrorInvalidConfiguration;
  int64_t items[2];  // of a token
  for (const bool key : {false, true}) {
    Side& side = op.sides[key];
    side = side_of(request, key);
    items[key] = ceil_div(side.heads, plan.repeats);
    if (items[key] > 0) side.token_items = Divisor(static_cast<uint32_t>(items[key]));
  }

  // Slices of the outermost level of tokens, so that an index fits 31 bits.
  const Walk<Request::kTensors>& tokens = request.tokens;
  const int level = tokens.rank == 2 ? 1 : 0;
  const int64_t inner = level == 1 ? tokens.run() : 1, outer = tokens.count / inner;
  if (level == 1) op.inner_tokens = Divisor(static_cast<uint32_t>(inner));
  const int64_t slice = kMaxIndex / (inner * request.heads());
  for (int64_t first = 0; first < outer; first += slice) {
    const int64_t count = outer - first < slice ? outer - first : slice;
    int64_t blocks[2];
    for (const bool key : {false, true}) {
      op.sides[key].items = static_cast<uint32_t>(count * inner * items[key]);
      blocks[key] = ceil_div(op.sides[key].items, groups);
    }
    op.query_blocks = static_cast<int32_t>(blocks[0]);
    const cudaError_t error = launch(kernel, blocks[0] + blocks[1], plan.threads, op, plan.dependent, target);
    if (error != cudaSuccess) return error;
    int tensor = 0;
    const auto past = [&](const Tensor& t) { return slice * request.stride(tensor++, level) * element_size(t.dtype); };
    for (Side& side : op.sides) {
      side.in = static_cast<const char*>(side.in) + past(request.first);
      side.out = static_cast<char*>(side.out) + past(request.first);
    }
    op.rotation.positions = static_cast<const char*>(op.rotation.positions) + past(request.op.positions);
  }
  return cudaSuccess;
}

template <class T>
cudaError_t launch_any(const Request& request, const Plan& plan, const Target& target) {
  for (const bool key : {false, true}) {
    const QkRope::Heads& heads = key ? request.op.key : request.op.query;
    if (!heads.in.present() || heads.in.size(2) == 0) continue;
    const int in = key ? Request::kKeyIn : Request::kQueryIn;
    Walk<3> walk;
    for (int d = 0; d < request.tokens.rank; d++) {
      const auto& stride = request.tokens.stride;
      walk.push(request.tokens.size[d], {stride[in][d], stride[in + 1][d], stride[Request::kPositions][d]});
    }
    const Tensor& cache = request.op.cos_sin_cache;
    HeadsAny op;
    op.in = heads.in.data;
    op.out = heads.out.data;
    op.weight = request.op.normalize && heads.weight.present() ? heads.weight.data : nullptr;
    op.positions = request.op.positions.data;
    op.cache = cache.data;
    op.tokens = Nested<3>(walk);
    op.in_head = heads.in.stride[heads.in.rank - 2];
    op.out_head = heads.out.stride[heads.out.rank - 2];
    op.cache_stride = cache.stride[0];
    op.heads = heads.in.size(2);
    op.size = request.size;
    op.cache_rows = request.rotates() ? cache.shape[0] : 0;
    op.half = request.rotary_dim / 2;
    op.mean = mean_of(request);
    op.weight_offset = request.op.weight_offset;
    op.positions_are_int64 = request.op.positions.dtype == DType::kInt64;
    op.cache_is_float32 = cache.dtype == DType::kFloat32;
    op.weight_is_float32 = heads.weight.dtype == DType::kFloat32;
    op.interleaved = request.op.interleaved;
    op.round_normalized = request.op.round_normalized;
    const int64_t count = request.tokens.count * op.heads;
    for (op.first_head = 0; op.first_head < count; op.first_head += kMaxIndex) {
      const int64_t blocks = count - op.first_head < kMaxIndex ? count - op.first_head : kMaxIndex;
      const cudaError_t error = launch(request.op.normalize ? heads_any<T, true> : heads_any<T, false>, blocks,
                                       kAnyThreads, op, plan.dependent, target);
      if (error != cudaSuccess) return error;
    }
  }
  return cudaSuccess;
}

template <class T>
cudaError_t launch_for(const Request& request, const Plan& plan, const Target& target) {
  return plan.kernel == Plan::kAny ? launch_any<T>(request, plan, target) : launch_registers<T>(request, plan, target);
}

const char* run_for(const Request& request, const Plan& plan, int device, void* stream) {
  if (request.is_empty()) return nullptr;
  const OnDevice on(device);
  if (on.error() != cudaSuccess) return error_text(on.error());
  const Target target{device, static_cast<cudaStream_t>(stream)};
  switch (request.first.dtype) {
    case DType::kFloat32:
      return error_text(launch_for<Float32>(request, plan, target));
    case DType::kBFloat16:
      return error_text(launch_for<BFloat16>(request, plan, target));
    default:
      return error_text(launch_for<Float16>(request, plan, target));
  }
}

}  // namespace

Plan plan(const QkRope& op) { return plan_for(Request(op)); }

const char* run(const QkRope& op, const Plan& plan, int device, void* stream) {
  return run_for(Request(op), plan, device, stream);
}

const char* run(const QkRope& op, int device, void* stream) {
  const Request request(op);
  return run_for(request, plan_for(request), device, stream);
}

}  // namespace cuda
}  // namespace edge_ops

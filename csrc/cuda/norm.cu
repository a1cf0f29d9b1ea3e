// rms_norm and fused_add_rms_norm.
#include "launch.h"
#include "numerics.cuh"

namespace edge_ops {
namespace cuda {
namespace {

constexpr int kVector = 8;                        // elements of a lane in a chunk
constexpr int kMaxWarps[5] = {0, 32, 32, 0, 16};  // of a block, by chunks a warp: bounds the registers

struct Operands {
  const void* x;
  void* out;
  void* residual;  // fused_add_rms_norm: x + residual goes here
  const void* weight;
  MeanSquare mean;
  float weight_offset;
  bool weight_is_float32;
};

struct Norm : Operands {
  int32_t x_stride, out_stride, residual_stride;  // bytes
  int32_t n, rows;
};

// The gain of kVector elements from `element` on.
template <class T>
struct Gain {
  Constant<T, kVector> weight;

  template <bool kAligned>
  __device__ __forceinline__ void load(const Norm& op, int64_t element) {
    if (op.weight == nullptr) return;
    if (kAligned) {
      weight.load(op.weight, element, op.weight_is_float32);
    } else {
      weight.load_elements(op.weight, element, op.n, op.weight_is_float32);
    }
  }

  // y = (x * inverse) * (weight + offset)
  __device__ __forceinline__ void scale(const Operands& op, float inverse, float (&v)[kVector]) const {
    float gain[kVector];
    if (op.weight != nullptr) weight.get(gain, op.weight_is_float32);
#pragma unroll
    for (int i = 0; i < kVector; i++) {
      v[i] *= inverse;
      if (op.weight != nullptr) v[i] *= gain[i] + op.weight_offset;
    }
  }
};

// x + residual, rounded and stored as the new residual.
template <class T>
__device__ __forceinline__ Bits<kVector * T::kSize> add_residual(const Bits<kVector * T::kSize>& x,
                                                                 const Bits<kVector * T::kSize>& residual) {
  float a[kVector], b[kVector];
  widen<T>(x, a);
  widen<T>(residual, b);
#pragma unroll
  for (int i = 0; i < kVector; i++) a[i] += b[i];
  return round_to<T>(a);
}

// A lane's elements of a row: in one access, or one by one where rows are not aligned or not a multiple of it.
template <class T, bool kAligned>
__device__ __forceinline__ Bits<kVector * T::kSize> load_vector(const void* row, int i, int n) {
  return kAligned ? load_bits<kVector * T::kSize>(at<T>(row, i)) : load_elements<T, kVector>(row, i, n);
}

template <class T, bool kAligned>
__device__ __forceinline__ void store_vector(void* row, int i, int n, const Bits<kVector * T::kSize>& bits) {
  if (kAligned) {
    store_bits(at<T>(row, i), bits);
  } else {
    store_elements<T, kVector>(row, i, n, bits);
  }
}

// A block a row, kChunks neighbouring chunks of the row a warp, all of it in registers.
template <class T, int kChunks, int kMaxWarps, bool kAligned, bool kResidual>
__global__ void __launch_bounds__(32 * kMaxWarps) norm_in_registers(const Norm op) {
  __shared__ alignas(16) float shared[32];
  const int lane = threadIdx.x % 32, first = (threadIdx.x / 32) * kChunks * numerics::kChunk + lane * kVector;
  const int n = op.n, row = blockIdx.x;
  const void* x = step(op.x, row, op.x_stride);
  void* out = step(op.out, row, op.out_stride);
  void* residual = kResidual ? step(op.residual, row, op.residual_stride) : nullptr;
  const BlockPairTree<kMaxWarps> tree(shared);
  settle(out);

  Gain<T> gain[kChunks];
  if (!kResidual) warm_addresses(x, out);
  if (row == 0 && op.weight != nullptr && lane % 8 == 0) {
    // The weight of a layer is seldom in L2 yet; one block fetches it for all.
#pragma unroll
    for (int c = 0; c < kChunks; c++) {
      const int i = first + c * numerics::kChunk;
      if (i < n) prefetch(op.weight_is_float32 ? at<Float32>(op.weight, i) : at<T>(op.weight, i));
    }
  }
  wait_for_previous_kernel();
  let_next_kernel_start();
  Bits<kVector * T::kSize> bits[kChunks], addend[kChunks];
#pragma unroll
  for (int c = 0; c < kChunks; c++) {
    const int i = first + c * numerics::kChunk;
    bits[c] = {};
    if (i >= n) continue;
    bits[c] = load_vector<T, kAligned>(x, i, n);
    if (kResidual) addend[c] = load_vector<T, kAligned>(residual, i, n);
  }
#pragma unroll
  for (int c = 0; c < kChunks; c++) {
    const int i = first + c * numerics::kChunk;
    if (i < n) gain[c].template load<kAligned>(op, i);
  }

  float sums[kChunks];
#pragma unroll
  for (int c = 0; c < kChunks; c++) {
    const int i = first + c * numerics::kChunk;
    if (kResidual && i < n) {
      bits[c] = add_residual<T>(bits[c], addend[c]);
      store_vector<T, kAligned>(residual, i, n, bits[c]);
    }
    float v[kVector];
    widen<T>(bits[c], v);
    square(v);
    sums[c] = halving_tree<32>(v);
  }
  const float inverse = inverse_rms(tree(pair_tree(sums)), op.mean);
#pragma unroll
  for (int c = 0; c < kChunks; c++) {
    const int i = first + c * numerics::kChunk;
    if (i >= n) continue;
    float v[kVector];
    widen<T>(bits[c], v);
    gain[c].scale(op, inverse, v);
    store_vector<T, kAligned>(out, i, n, round_to<T>(v));
  }
}

// Narrow rows: kLanes lanes a row, many rows a block, no barrier.
template <class T, int kLanes, bool kResidual>
__global__ void __launch_bounds__(1024) norm_in_lanes(const Norm op) {
  constexpr int kBytes = kVector * T::kSize;
  int row = blockIdx.x * (blockDim.x / kLanes) + threadIdx.x / kLanes;
  const int i = threadIdx.x % kLanes * kVector;
  const bool active = row < op.rows && i < op.n;
  if (row >= op.rows) row = 0;
  const void* x = at<T>(step(op.x, row, op.x_stride), i);
  void* out = at<T>(step(op.out, row, op.out_stride), i);
  void* residual = kResidual ? at<T>(step(op.residual, row, op.residual_stride), i) : nullptr;

  if (!kResidual) warm_addresses(x, out);
  wait_for_previous_kernel();
  let_next_kernel_start();
  Bits<kBytes> bits = {}, addend;
  Gain<T> gain;
  if (active) {
    bits = load_bits<kBytes>(x);
    if (kResidual) addend = load_bits<kBytes>(residual);
    gain.template load<true>(op, i);
  }
  if (kResidual && active) {
    bits = add_residual<T>(bits, addend);
    store_bits(residual, bits);
  }
  float v[kVector];
  widen<T>(bits, v);
  square(v);
  const float inverse = inverse_rms(halving_tree<kLanes>(v), op.mean);
  if (!active) return;
  widen<T>(bits, v);
  gain.scale(op, inverse, v);
  store_bits(out, round_to<T>(v));
}

// Any length, stride and alignment: a block a row, the row read twice.
constexpr int kAnyWarps = 8;

struct NormAny : Operands {
  Nested<2> layout;  // of x and out, or of x (both input and output) and residual
  int64_t n, first_row;
};

template <class T, bool kResidual>
__global__ void __launch_bounds__(32 * kAnyWarps) norm_any(const NormAny op) {
  __shared__ PairCounter<kAnyWarps> counter;
  int64_t offset[2];
  op.layout.offsets(op.first_row + blockIdx.x, offset);
  const void* x = at<T>(op.x, offset[0]);
  void* residual = kResidual ? at<T>(op.residual, offset[1]) : nullptr;
  void* out = at<T>(op.out, offset[kResidual ? 0 : 1]);
  const void* source = kResidual ? residual : x;

  wait_for_previous_kernel();
  let_next_kernel_start();
  const float sum = counter.sum_of_squares(op.n, [&](int64_t i) {
    float v[1] = {load_one<T>(x, i)};
    if (kResidual) {
      v[0] += load_one<T>(residual, i);
      round_in_place<T>(v);
      store_one<T>(residual, i, v[0]);
    }
    return v[0];
  });
  const float inverse = inverse_rms(sum, op.mean);
  for (int64_t i = threadIdx.x; i < op.n; i += 32 * kAnyWarps) {
    float y = load_one<T>(source, i) * inverse;
    if (op.weight != nullptr) y *= load_constant<T>(op.weight, i, op.weight_is_float32) + op.weight_offset;
    store_one<T>(out, i, y);
  }
}

// --- routes -----------------------------------------------------------------------------

// Both operators, as the kernels see them. In fused_add_rms_norm x is the output.
struct Request {
  const Tensor &x, &out, &weight;
  const Tensor* residual;
  float eps, weight_offset;
  Walk<2> walk;

  explicit Request(const RmsNorm& op)
      : x(op.x),
        out(op.out),
        weight(op.weight),
        residual(nullptr),
        eps(op.eps),
        weight_offset(op.weight_offset),
        walk(walk_rows<2>(op.x.rank - 1, op.x.shape, {op.x.stride, op.out.stride})) {}
  explicit Request(const FusedAddRmsNorm& op)
      : x(op.x),
        out(op.x),
        weight(op.weight),
        residual(&op.residual),
        eps(op.eps),
        weight_offset(op.weight_offset),
        walk(walk_rows<2>(op.x.rank - 1, op.x.shape, {op.x.stride, op.residual.stride})) {}

  int64_t n() const { return x.size(1); }
  const Tensor& second() const { return residual != nullptr ? *residual : out; }

  bool rows_fit() const {
    return walk.rank <= 1 && is_short(walk.run_stride(0) * element_size(x.dtype)) &&
           is_short(walk.run_stride(1) * element_size(x.dtype));
  }

  bool vectors_fit() const {
    const int64_t bytes = 16;
    return rows_fit() && n() % kVector == 0 && aligned(x, walk.run_stride(0), bytes) &&
           aligned(second(), walk.run_stride(1), bytes) && (!weight.present() || aligned(weight.data, bytes));
  }
};

// Thresholds from benchmarks/results/gpu_sweep.json: chunks of a row a warp, which shortens the block as rows get long
// or many; rows a block where they are narrow.
Plan plan_for(const Request& request) {
  const int64_t n = request.n(), rows = request.walk.count, chunks = ceil_div(n, numerics::kChunk);
  if (!request.vectors_fit()) {
    if (request.rows_fit() && chunks <= 32) return {Plan::kRegisters, 1, 1, 0, Plan::kInChains};
    return {Plan::kAny, 1, 1, 32 * kAnyWarps, Plan::kInChains};
  }
  if (chunks > 64) return {Plan::kAny, 1, 1, 32 * kAnyWarps, Plan::kInChains};
  if (chunks == 1) return {Plan::kLanes, kVector, 1, rows < 2048 || n <= 64 ? 128 : 256, Plan::kInChains};
  const int a_warp = chunks <= 6    ? 1
                     : chunks <= 12 ? (rows < 256 ? 1 : 2)
                     : chunks <= 24 ? (rows < 1024 ? 2 : 4)
                                    : (rows < 256 ? 2 : 4);
  return {Plan::kRegisters, kVector, a_warp, 0, Plan::kInChains};
}

using Kernel = void (*)(Norm);

// The kernel for a plan and its threads a block; nullptr where the plan does not fit.
template <class T, bool kResidual>
Kernel kernel_for(const Request& request, const Plan& plan, int* threads) {
  const int64_t n = request.n(), chunks = plan.repeats;
  if (plan.kernel == Plan::kLanes) {
    *threads = plan.threads;
    if (!request.vectors_fit() || n > numerics::kChunk || plan.threads % 32 != 0) return nullptr;
    return n <= 64    ? norm_in_lanes<T, 8, kResidual>
           : n <= 128 ? norm_in_lanes<T, 16, kResidual>
                      : norm_in_lanes<T, 32, kResidual>;
  }
  if (chunks != 1 && chunks != 2 && chunks != 4) return nullptr;
  const int64_t warps = ceil_div(n, chunks * numerics::kChunk);
  if (warps > kMaxWarps[chunks]) return nullptr;
  *threads = static_cast<int>(32 * warps);
  if (plan.elements == 1)
    return request.rows_fit() && chunks == 1 ? norm_in_registers<T, 1, 32, false, kResidual> : nullptr;
  if (!request.vectors_fit()) return nullptr;
  if (chunks == 4)
    return warps <= 8 ? norm_in_registers<T, 4, 8, true, kResidual> : norm_in_registers<T, 4, 16, true, kResidual>;
  if (chunks == 2) {
    return warps <= 8    ? norm_in_registers<T, 2, 8, true, kResidual>
           : warps <= 16 ? norm_in_registers<T, 2, 16, true, kResidual>
                         : norm_in_registers<T, 2, 32, true, kResidual>;
  }
  return warps <= 8    ? norm_in_registers<T, 1, 8, true, kResidual>
         : warps <= 16 ? norm_in_registers<T, 1, 16, true, kResidual>
                       : nullptr;  // long rows are faster with more chunks a warp
}

Operands operands_of(const Request& request) {
  const float count = static_cast<float>(request.n());
  Operands op;
  op.x = request.x.data;
  op.out = request.out.data;
  op.residual = request.residual != nullptr ? request.residual->data : nullptr;
  op.weight = request.weight.present() ? request.weight.data : nullptr;
  op.weight_is_float32 = request.weight.dtype == DType::kFloat32;
  op.mean = {count, 1.0f / count, request.eps};
  op.weight_offset = request.weight_offset;
  return op;
}

template <class T, bool kResidual>
cudaError_t launch_any(const Request& request, const Plan& plan, const Target& target) {
  NormAny op;
  static_cast<Operands&>(op) = operands_of(request);
  op.layout = Nested<2>(request.walk);
  op.n = request.n();
  const int64_t rows = request.walk.count;
  for (op.first_row = 0; op.first_row < rows; op.first_row += kMaxIndex) {
    const int64_t blocks = rows - op.first_row < kMaxIndex ? rows - op.first_row : kMaxIndex;
    const cudaError_t error = launch(norm_any<T, kResidual>, blocks, 32 * kAnyWarps, op, plan.dependent, target);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

template <class T, bool kResidual>
cudaError_t launch_for(const Request& request, const Plan& plan, const Target& target) {
  if (plan.kernel == Plan::kAny) return launch_any<T, kResidual>(request, plan, target);
  int threads = 0;
  const Kernel kernel = kernel_for<T, kResidual>(request, plan, &threads);
  if (kernel == nullptr) return cudaErrorInvalidConfiguration;
  const int64_t n = request.n(), rows = request.walk.count;
  const int lanes = n <= 64 ? 8 : n <= 128 ? 16 : 32;
  const int rows_a_block = plan.kernel == Plan::kLanes ? threads / lanes : 1;
  Norm op;
  static_cast<Operands&>(op) = operands_of(request);
  op.x_stride = bytes_of_stride(request.x, request.walk.run_stride(0));
  op.residual_stride = bytes_of_stride(request.x, request.walk.run_stride(1));
  op.out_stride = kResidual ? op.x_stride : op.residual_stride;
  op.n = static_cast<int32_t>(n);
  for (int64_t first = 0; first < rows; first += kMaxIndex) {
    op.rows = static_cast<int32_t>(rows - first < kMaxIndex ? rows - first : kMaxIndex);
    const cudaError_t error = launch(kernel, ceil_div(op.rows, rows_a_block), threads, op, plan.dependent, target);
    if (error != cudaSuccess) return error;
    op.x = static_cast<const char*>(op.x) + kMaxIndex * op.x_stride;
    op.out = static_cast<char*>(op.out) + kMaxIndex * op.out_stride;
    if (kResidual) op.residual = static_cast<char*>(op.residual) + kMaxIndex * op.residual_stride;
  }
  return cudaSuccess;
}

template <bool kResidual>
const char* run_for(const Request& request, const Plan& plan, int device, void* stream) {
  if (request.x.numel() == 0) return nullptr;
  const OnDevice on(device);
  if (on.error() != cudaSuccess) return error_text(on.error());
  const Target target{device, static_cast<cudaStream_t>(stream)};
  switch (request.x.dtype) {
    case DType::kFloat32:
      return error_text(launch_for<Float32, kResidual>(request, plan, target));
    case DType::kBFloat16:
      return error_text(launch_for<BFloat16, kResidual>(request, plan, target));
    default:
      return error_text(launch_for<Float16, kResidual>(request, plan, target));
  }
}

}  // namespace

Plan plan(const RmsNorm& op) { return plan_for(Request(op)); }
Plan plan(const FusedAddRmsNorm& op) { return plan_for(Request(op)); }

const char* run(const RmsNorm& op, const Plan& plan, int device, void* stream) {
  return run_for<false>(Request(op), plan, device, stream);
}

const char* run(const FusedAddRmsNorm& op, const Plan& plan, int device, void* stream) {
  return run_for<true>(Request(op), plan, device, stream);
}

const char* run(const RmsNorm& op, int device, void* stream) {
  const Request request(op);
  return run_for<false>(request, plan_for(request), device, stream);
}

const char* run(const FusedAddRmsNorm& op, int device, void* stream) {
  const Request request(op);
  return run_for<true>(request, plan_for(request), device, stream);
}

}  // namespace cuda
}  // namespace edge_ops

// silu_and_mul and gelu_tanh_and_mul.
#include "launch.h"
#include "numerics.cuh"

namespace edge_ops {
namespace cuda {
namespace {

struct Activation {
  const void* x;  // gate, then up
  void* out;
  int32_t x_stride, out_stride, up;  // bytes; up: from the gate to its up
  uint32_t vectors;                  // of all rows
  Divisor row_vectors;               // vectors of a row
};

template <class T, bool kGelu, int kVector>
__device__ __forceinline__ Bits<kVector * T::kSize> gated(const Bits<kVector * T::kSize>& gates,
                                                          const Bits<kVector * T::kSize>& ups) {
  float g[kVector], u[kVector];
  widen<T>(gates, g);
  if constexpr (T::kSize == 4) {
#pragma unroll
    for (int i = 0; i < kVector; i++) g[i] = gate<T, kGelu>(g[i]);
  } else {
    if (__builtin_expect(all_within<T>(gates.word, kQuickGate<kGelu>), 1)) {
#pragma unroll
      for (int i = 0; i < kVector; i++) g[i] = gate_quick<kGelu>(g[i]);
    } else {
#pragma unroll
      for (int i = 0; i < kVector; i++) g[i] = gate_wide<kGelu>(g[i]);
    }
  }
  widen<T>(ups, u);
#pragma unroll
  for (int i = 0; i < kVector; i++) g[i] *= u[i];
  return round_to<T>(g);
}

// A thread takes kRepeats vectors of kVector elements, a block's width apart, from the sequence of all rows' vectors.
template <class T, bool kGelu, int kVector, int kRepeats>
__global__ void __launch_bounds__(1024) gate_vectors(const Activation op) {
  constexpr int kBytes = kVector * T::kSize;
  const void* x[kRepeats];
  void* out[kRepeats];
  bool active[kRepeats];
#pragma unroll
  for (int k = 0; k < kRepeats; k++) {
    const uint32_t index = (blockIdx.x * kRepeats + k) * blockDim.x + threadIdx.x;
    const uint32_t row = op.row_vectors.quotient(index), column = index - row * op.row_vectors.value;
    active[k] = index < op.vectors;
    x[k] = step(step(op.x, row, op.x_stride), column, kBytes);
    out[k] = step(step(op.out, row, op.out_stride), column, kBytes);
  }
  warm_addresses(x[0], step(x[0], 1, op.up), out[0]);
  wait_for_previous_kernel();
  let_next_kernel_start();
  Bits<kBytes> gates[kRepeats], ups[kRepeats];
#pragma unroll
  for (int k = 0; k < kRepeats; k++) {
    if (!active[k]) continue;
    gates[k] = load_bits<kBytes>(x[k]);
    ups[k] = load_bits<kBytes>(step(x[k], 1, op.up));
  }
#pragma unroll
  for (int k = 0; k < kRepeats; k++) {
    if (active[k]) store_bits(out[k], gated<T, kGelu, kVector>(gates[k], ups[k]));
  }
}

// Any strides: a block a row, element by element.
constexpr int kAnyThreads = 256;

struct ActivationAny {
  const void* x;
  void* out;
  Nested<2> layout;  // of x and out
  int64_t d, first_row;
};

template <class T, bool kGelu>
__global__ void __launch_bounds__(kAnyThreads) gate_any(const ActivationAny op) {
  int64_t offset[2];
  op.layout.offsets(op.first_row + blockIdx.x, offset);
  const void* x = at<T>(op.x, offset[0]);
  void* out = at<T>(op.out, offset[1]);
  wait_for_previous_kernel();
  let_next_kernel_start();
  for (int64_t i = threadIdx.x; i < op.d; i += kAnyThreads)
    store_one<T>(out, i, gate<T, kGelu>(load_one<T>(x, i)) * load_one<T>(x, op.d + i));
}

// --- routes -----------------------------------------------------------------------------

struct Request {
  const GatedActivation& op;
  int64_t d;
  Walk<2> walk;

  explicit Request(const GatedActivation& op_)
      : op(op_), d(op_.out.size(1)), walk(walk_rows<2>(op_.x.rank - 1, op_.x.shape, {op_.x.stride, op_.out.stride})) {}

  bool vectors_fit(int vector) const {
    const int64_t item = element_size(op.x.dtype), bytes = vector * item < 16 ? vector * item : 16;
    return walk.rank <= 1 && d % vector == 0 && d * item % bytes == 0 && is_short(walk.run_stride(0) * item) &&
           is_short(walk.run_stride(1) * item) && is_short(d * item) && d / vector <= kMaxIndex &&
           aligned(op.x, walk.run_stride(0), bytes) && aligned(op.out, walk.run_stride(1), bytes);
  }
};

// Thresholds from benchmarks/results/gpu_sweep.json: a few thousand elements want many threads with little each, many
// want wide loads.
Plan plan_for(const Request& request) {
  const int64_t elements = request.walk.count * request.d;
  Plan plan = elements < (1 << 14)    ? Plan{Plan::kRegisters, 2, 1, 256, Plan::kInChains}
              : elements < (11 << 15) ? Plan{Plan::kRegisters, 2, 1, 512, Plan::kInChains}
              : elements < (5 << 17)  ? Plan{Plan::kRegisters, 4, 1, 256, Plan::kInChains}
              : elements < (9 << 17)  ? Plan{Plan::kRegisters, 4, 1, 512, Plan::kInChains}
              : elements < (1 << 21)  ? Plan{Plan::kRegisters, 8, 1, 128, Plan::kInChains}
              : elements < (1 << 22)  ? Plan{Plan::kRegisters, 8, 1, 256, Plan::kInChains}
                                      : Plan{Plan::kRegisters, 8, 2, 128, Plan::kInChains};
  while (plan.elements > 1 && !request.vectors_fit(plan.elements)) plan.elements /= 2, plan.repeats = 1;
  if (!request.vectors_fit(plan.elements)) return {Plan::kAny, 1, 1, kAnyThreads, Plan::kInChains};
  return plan;
}

using Kernel = void (*)(Activation);

template <class T, bool kGelu>
Kernel kernel_for(int vector, int repeats) {
  switch (repeats * 100 + vector) {
    case 101:
      return gate_vectors<T, kGelu, 1, 1>;
    case 102:
      return gate_vectors<T, kGelu, 2, 1>;
    case 104:
      return gate_vectors<T, kGelu, 4, 1>;
    case 108:
      return gate_vectors<T, kGelu, 8, 1>;
    case 208:
      return gate_vectors<T, kGelu, 8, 2>;
    default:
      return nullptr;
  }
}

template <class T, bool kGelu>
cudaError_t launch_for(const Request& request, const Plan& plan, const Target& target) {
  const Walk<2>& walk = request.walk;
  if (plan.kernel == Plan::kAny) {
    ActivationAny op{request.op.x.data, request.op.out.data, Nested<2>(walk), request.d, 0};
    for (; op.first_row < walk.count; op.first_row += kMaxIndex) {
      const int64_t blocks = walk.count - op.first_row < kMaxIndex ? walk.count - op.first_row : kMaxIndex;
      const cudaError_t error = launch(gate_any<T, kGelu>, blocks, kAnyThreads, op, plan.dependent, target);
      if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
  }
  const Kernel kernel = kernel_for<T, kGelu>(plan.elements, plan.repeats);
  if (kernel == nullptr || !request.vectors_fit(plan.elements) || plan.threads % 32 != 0 || plan.threads > 1024)
    return cudaErrorInvalidConfiguration;
  const int64_t row_vectors = request.d / plan.elements, slice = kMaxIndex / row_vectors;
  Activation op;
  op.x = request.op.x.data;
  op.out = request.op.out.data;
  op.x_stride = bytes_of_stride(request.op.x, walk.run_stride(0));
  op.out_stride = bytes_of_stride(request.op.out, walk.run_stride(1));
  op.up = static_cast<int32_t>(request.d * T::kSize);
  op.row_vectors = Divisor(static_cast<uint32_t>(row_vectors));
  for (int64_t first = 0; first < walk.count; first += slice) {
    const int64_t rows = walk.count - first < slice ? walk.count - first : slice;
    op.vectors = static_cast<uint32_t>(rows * row_vectors);
    const cudaError_t error = launch(kernel, ceil_div(op.vectors, int64_t{plan.threads} * plan.repeats), plan.threads,
                                     op, plan.dependent, target);
    if (error != cudaSuccess) return error;
    op.x = static_cast<const char*>(op.x) + slice * op.x_stride;
    op.out = static_cast<char*>(op.out) + slice * op.out_stride;
  }
  return cudaSuccess;
}

template <class T>
cudaError_t launch_gate(const Request& request, const Plan& plan, const Target& target) {
  return request.op.gate == Gate::kSilu ? launch_for<T, false>(request, plan, target)
                                        : launch_for<T, true>(request, plan, target);
}

const char* run_for(const Request& request, const Plan& plan, int device, void* stream) {
  if (request.op.out.numel() == 0) return nullptr;
  const OnDevice on(device);
  if (on.error() != cudaSuccess) return error_text(on.error());
  const Target target{device, static_cast<cudaStream_t>(stream)};
  switch (request.op.x.dtype) {
    case DType::kFloat32:
      return error_text(launch_gate<Float32>(request, plan, target));
    case DType::kBFloat16:
      return error_text(launch_gate<BFloat16>(request, plan, target));
    default:
      return error_text(launch_gate<Float16>(request, plan, target));
  }
}

}  // namespace

Plan plan(const GatedActivation& op) { return plan_for(Request(op)); }

const char* run(const GatedActivation& op, const Plan& plan, int device, void* stream) {
  return run_for(Request(op), plan, device, stream);
}

const char* run(const GatedActivation& op, int device, void* stream) {
  const Request request(op);
  return run_for(request, plan_for(request), device, stream);
}

}  // namespace cuda
}  // namespace edge_ops

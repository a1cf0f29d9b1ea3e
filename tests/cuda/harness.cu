// The CUDA kernels behind a C interface, for tests and sweeps: any plan, no PyTorch. Also an empty kernel, which is the
// floor of a launch, and the shortcuts of numerics.cuh beside what they stand for.
#include <algorithm>
#include <vector>

#include "../../csrc/cuda/launch.h"
#include "../../csrc/cuda/numerics.cuh"

using namespace edge_ops;

namespace {

template <class Op>
const char* run_checked(const Op* op, const cuda::Plan* plan, int device, void* stream) {
  if (const char* problem = check(*op)) return problem;
  return plan != nullptr ? cuda::run(*op, *plan, device, stream) : cuda::run(*op, device, stream);
}

struct Nothing {};

__global__ void nothing(const Nothing) {
  cuda::wait_for_previous_kernel();
  cuda::let_next_kernel_start();
}

// Sums of squares first, first + 1, ... as bit patterns: counts where inverse_rms is not its exact form.
__global__ void count_wrong_inverses(uint32_t first, uint32_t count, float n, float eps, unsigned long long* wrong) {
  const cuda::MeanSquare mean{n, 1.0f / n, eps};
  for (uint64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    const float sum = __uint_as_float(first + static_cast<uint32_t>(i));
    const float got = cuda::inverse_rms(sum, mean), want = cuda::inverse_rms_exact(sum, n, eps);
    if (__float_as_uint(got) != __float_as_uint(want) && !(isnan(got) && isnan(want))) atomicAdd(wrong, 1ull);
  }
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

#define OPERATOR(Op, suffix)                                                                        \
  EXPORT const char* run_##suffix(const Op* op, const cuda::Plan* plan, int device, void* stream) { \
    return run_checked(op, plan, device, stream);                                                   \
  }                                                                                                 \
  EXPORT void plan_##suffix(const Op* op, cuda::Plan* plan) { *plan = cuda::plan(*op); }

OPERATOR(RmsNorm, rms_norm)
OPERATOR(FusedAddRmsNorm, fused_add_rms_norm)
OPERATOR(GatedActivation, gated_activation)
OPERATOR(QkRope, qk_rope)

EXPORT const char* run_nothing(bool dependent, int device, void* stream) {
  const auto how = dependent ? cuda::Plan::kAlways : cuda::Plan::kNever;
  return cuda::error_text(
      cuda::launch(nothing, 1, 32, Nothing{}, how, cuda::Target{device, static_cast<cudaStream_t>(stream)}));
}

// How many edges of a graph let their second kernel start early, or -1.
EXPORT int64_t count_programmatic_edges(cudaGraph_t graph) {
  size_t count = 0;
  if (cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &count) != cudaSuccess) return -1;
  std::vector<cudaGraphNode_t> from(count), to(count);
  std::vector<cudaGraphEdgeData> data(count);
  if (cudaGraphGetEdges(graph, from.data(), to.data(), data.data(), &count) != cudaSuccess) return -1;
  return std::count_if(data.begin(), data.end(),
                       [](const cudaGraphEdgeData& edge) { return edge.type == cudaGraphDependencyTypeProgrammatic; });
}

EXPORT const char* run_count_wrong_inverses(uint32_t first, uint32_t count, float n, float eps, void* wrong,
                                            void* stream) {
  count_wrong_inverses<<<1024, 256, 0, static_cast<cudaStream_t>(stream)>>>(first, count, n, eps,
                                                                            static_cast<unsigned long long*>(wrong));
  return cuda::error_text(cudaGetLastError());
}

// silu_and_mul and gelu_tanh_and_mul.
#include "launch.h"
#include "numerics.cuh"

namespace edge_ops {
namespace cuda {
namespace {

struct Activation {
  const void* x;  // gate, then up
  void* out;
  int64_t x_stride, out_stride;
  int64_t d;
  uint32_t vectors;     // of all rows
  Divisor row_vectors;  // vectors of a row
};

// Whether gate_quick serves all of these 16-bit gates: every |g| in its range, and none a NaN.
template <class T, bool kGelu, int kVector>
__device__ __forceinline__ bool all_quick(const Bits<kVector * T::kSize>& gates) {
  float largest = 0.0f;
  bool good = true;
#pragma unroll
  for (int i = 0; i < (kVector + 1) / 2; i++) good = good && T::within(gates.word[i], kQuickGate<kGelu>);
  return good && largest == 0.0f;
}

template <class T, bool kGelu, int kVector>
__device__ __forceinline__ Bits<kVector * T::kSize> gated(const Bits<kVector * T::kSize>& gates,
                                                          const Bits<kVector * T::kSize>& ups) {
  float g[kVector], u[kVector];
  widen<T>(gates, g);
  widen<T>(ups, u);
  if (T::kSize == 2 && T::template all_within<kVector>(gates, kQuickGate<kGelu>)) {
#pragma unroll
    for (int i = 0; i < kVector; i++) g[i] = gate_quick<kGelu>(g[i]) * u[i];
  } else {
#pragma unroll
    for (int i = 0; i < kVector; i++) g[i] = gate<T, kGelu>(g[i]) * u[i];
  }
  return round_to<T>(g);
}

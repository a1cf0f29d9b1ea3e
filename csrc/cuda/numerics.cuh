// The contract's building blocks (docs/numerics.md) on CUDA. Compiled with -fmad=false: every fused multiply-add
// below is written out, and stands only where the result's bits are those of the contract.
#pragma once

#include "../numerics/constants.h"
#include "launch.h"
#include "storage.cuh"

namespace edge_ops {
namespace cuda {

// --- sum of squares ---------------------------------------------------------------------

// The halving tree over kLanes * kCount elements, kCount contiguous ones a lane, for every group of kLanes lanes of
// the warp at once; all its lanes return the sum. While a lane holds several partial sums it gives one half away for
// the other half of its partner's, so a level costs half the shuffles of the one before.
template <int kLanes, int kCount>
__device__ __forceinline__ float halving_tree(float (&v)[kCount]) {
  constexpr unsigned kAll = 0xffffffffu;
  const unsigned lane = threadIdx.x;
  int held = kCount;
#pragma unroll
  for (int bit = kLanes / 2; bit >= 1; bit /= 2) {
    if (held > 1) {
      held /= 2;
      const bool upper = lane & bit;
#pragma unroll
      for (int i = 0; i < kCount / 2; i++) {
        if (i >= held) break;
        const float kept = upper ? v[i + held] : v[i], given = upper ? v[i] : v[i + held];
        v[i] = kept + __shfl_xor_sync(kAll, given, bit);
      }
    } else {
      v[0] += __shfl_xor_sync(kAll, v[0], bit);
    }
  }
  // Now the levels inside what was one lane's elements: first those that were given away, then those still held.
  int spread = kCount / held;
#pragma unroll
  for (int bit = kLanes / 2; bit >= 1; bit /= 2) {
    if (spread == 1) break;
    spread /= 2;
#pragma unroll
    for (int i = 0; i < kCount; i++) {
      if (i >= held) break;
      v[i] += __shfl_xor_sync(kAll, v[i], bit);
    }
  }
#pragma unroll
  for (int n = kCount / 2; n >= 1; n /= 2) {
    if (n >= held) continue;
#pragma unroll
    for (int i = 0; i < kCount / 2; i++) {
      if (i < n) v[i] += v[i + n];
    }
  }
  return v[0];
}

template <int kCount>
__device__ __forceinline__ void square(float (&v)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; i++) v[i] *= v[i];
}

// Adjacent pairs, level by level, of a power of two of sums.
template <int kCount>
__device__ __forceinline__ float pair_tree(float (&sums)[kCount]) {
#pragma unroll
  for (int n = 1; n < kCount; n *= 2) {
#pragma unroll
    for (int i = 0; i < kCount; i += 2 * n) sums[i] += sums[i + n];
  }
  return sums[0];
}

// The pair tree over one sum a warp, for blocks of up to kMaxWarps warps; every thread returns it. A missing sum counts
// as +0, which changes no sum of squares. Constructed early, so that its addresses are at hand when the sums are.
template <int kMaxWarps>
class BlockPairTree {
 public:
  __device__ __forceinline__ explicit BlockPairTree(float (&shared)[32]) {
    if constexpr (kMaxWarps > 1) {
      const uint32_t warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
      read_ = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
      write_ = read_ + 4 * (warp + lane);
      // The last warp also clears what lies behind its sum.
      const bool clears = warp == warps - 1 && warp + lane < kMaxWarps;
      writes_ = lane == 0 || clears;
      settle(read_);
      settle(write_);
    }
  }

  __device__ __forceinline__ float operator()(float sum) const {
    if constexpr (kMaxWarps == 1) return sum;
    if (writes_) {
      const float value = threadIdx.x % 32 == 0 ? sum : 0.0f;
      asm volatile("st.shared.f32 [%0], %1;" ::"r"(write_), "f"(value) : "memory");
    }
    __syncthreads();
    if constexpr (kMaxWarps <= 16) {
      float sums[kMaxWarps];
#pragma unroll
      for (int i = 0; i < kMaxWarps; i += 4)
        asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(sums[i]), "=f"(sums[i + 1]), "=f"(sums[i + 2]), "=f"(sums[i + 3])
                     : "r"(read_ + 4 * i)
                     : "memory");
      return pair_tree(sums);
    } else {
      float value;
      asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(read_ + 4 * (threadIdx.x % 32)) : "memory");
#pragma unroll
      for (int bit = 1; bit < 32; bit *= 2) value += __shfl_xor_sync(0xffffffffu, value, bit);
      return value;
    }
  }

 private:
  uint32_t read_, write_;
  bool writes_;
};

// The sum of squares of a row of any length, by a block of kWarps warps (a power of two). Each round takes one chunk a
// warp; the sums of rounds are the leaves of the rest of the pair tree, which a binary counter builds while they come.
template <int kWarps>
struct PairCounter {
  alignas(16) float chunks[32];
  float pending[64];
  float total;

  // `value(i)` is called once for every element; the caller's writes are visible to the whole block afterwards.
  template <class Value>
  __device__ float sum_of_squares(int64_t n, const Value& value) {
    constexpr int kVector = numerics::kChunk / 32, kRound = kWarps * numerics::kChunk;
    const int64_t rounds = (n + kRound - 1) / kRound;
    const BlockPairTree<kWarps> tree(chunks);
    for (int64_t round = 0; round < rounds; round++) {
      const int64_t first = round * kRound + threadIdx.x * kVector;
      float v[kVector];
#pragma unroll
      for (int i = 0; i < kVector; i++) v[i] = first + i < n ? value(first + i) : 0.0f;
      square(v);
      float carry = tree(halving_tree<32>(v));
      if (threadIdx.x == 0) {
        int level = 0;
        for (; (round >> level) & 1; level++) carry = pending[level] + carry;
        pending[level] = carry;
      }
      __syncthreads();  // before `chunks` is written again
    }
    if (threadIdx.x == 0) {
      bool found = false;
      for (int level = 0; rounds >> level; level++) {
        if (!((rounds >> level) & 1)) continue;
        total = found ? pending[level] + total : pending[level];
        found = true;
      }
    }
    __syncthreads();
    return total;
  }
};

// --- 1 / sqrt(sum / n + eps) ------------------------------------------------------------

// What a norm knows of its row length and epsilon, worked out on the host.
struct MeanSquare {
  float count;       // n
  float reciprocal;  // 1 / n, correctly rounded
  float eps;
};

static __device__ __noinline__ float inverse_rms_exact(float sum, float count, float eps) {
  return __frcp_rn(__fsqrt_rn(__fdiv_rn(sum, count) + eps));
}

// The same bits as inverse_rms_exact in about half the time: one estimate (MUFU.RSQ) serves the square root and its
// reciprocal, and no step asks whether its operands are extraordinary, since that is asked once.
//
// Mean: two corrections of sum * RN(1 / n); the second starts from a faithful quotient and is therefore correctly
// rounded (Markstein). Root and reciprocal: right for every float and every estimate within 4 ulp, found by trying
// all of them (tests/cuda/estimates.cpp), except a root whose mantissa is all ones, which is left to the exact form.
__device__ __forceinline__ float inverse_rms(float sum, const MeanSquare& m) {
  float mean = sum * m.reciprocal;
  mean = __fmaf_rn(__fmaf_rn(-m.count, mean, sum), m.reciprocal, mean);
  mean = __fmaf_rn(__fmaf_rn(-m.count, mean, sum), m.reciprocal, mean);
  const float v = mean + m.eps;

  float estimate;
  asm volatile("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(estimate) : "f"(v));  // volatile: not after the branch below
  float root = v * estimate, half = 0.5f * estimate;
  const float error = __fmaf_rn(-half, root, 0.5f);
  root = __fmaf_rn(root, error, root);
  half = __fmaf_rn(half, error, half);
  root = __fmaf_rn(__fmaf_rn(-root, root, v), half, root);  // RN(sqrt(v))
  const float inverse = half + half;
  const float rest = __fmaf_rn(-root, inverse, 1.0f);
  const float result = __fmaf_rn(inverse, __fmaf_rn(rest, rest, rest), inverse);  // RN(1 / root)

  // Ranges in which no step above leaves the normal numbers.
  const bool ordinary = (sum >= 0x1p-60f || sum == 0.0f) && sum <= 0x1p100f && v >= 0x1p-90f && v <= 0x1p100f &&
                        (__float_as_uint(root) & 0x7fffffu) != 0x7fffffu;
  if (!ordinary) return inverse_rms_exact(sum, m.count, m.eps);
  return result;
}

// --- gates ------------------------------------------------------------------------------

template <bool kGelu>
__device__ __forceinline__ float gate_argument(float g) {
  if (!kGelu) return g;
  return (g * numerics::kGeluScale) * (1.0f + numerics::kGeluCubic * (g * g));
}

// 1.5 * 2^23: added, it rounds a float below 2^22 to an integer, in the low bits of the sum.
constexpr float kRounder = 12582912.0f;

// gate(g, argument(g)) for any g. A NaN needs no care in the clamps, since it is also the numerator.
template <class T, bool kGelu>
__device__ __forceinline__ float gate(float g) {
  using namespace numerics;
  const float x = fminf(fmaxf(-gate_argument<kGelu>(g), kExpMin), kExpMax);
  const float y = x * kLog2e;
  const float shifted = y + (kRounder + 126.0f);
  const float n = shifted - (kRounder + 126.0f);
  float p;
  if (T::kSize == 4) {
    const float r = __fmaf_rn(-n, kLn2Hi, x) - n * kLn2Lo;  // n * kLn2Hi is exact
    p = ((((kExp0 * r + kExp1) * r + kExp2) * r + kExp3) * r + kExp4) * r + kExp5;
    p = (p * (r * r) + r) + 1.0f;
  } else {
    const float f = y - n;
    p = (((kPow0 * f + kPow1) * f + kPow2) * f + kPow3) * f + 1.0f;
  }
  // The shift leaves n + 126 as the exponent: 2^(n - 1), or 0.
  const float half = p * __uint_as_float(__float_as_uint(shifted) << 23);
  return __fdiv_rn(g, 1.0f + (half + half));
}

// A 16-bit g leaves 65536 cases a type and gate, and so the two shortcuts below could be tried on all of them
// (tests/cuda). Both take the quotient from an estimate of 1 / divisor and one exact residual, written so that the sign
// of a zero survives.
__device__ __forceinline__ float reciprocal_estimate(float divisor) {
  float estimate;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(estimate) : "f"(divisor));
  return estimate;
}

// The largest |g| for which gate_quick may stand in for gate.
template <bool kGelu>
constexpr float kQuickGate = kGelu ? 10.0f : 80.0f;

// gate(g) for a 16-bit g with |g| <= kQuickGate: no clamp, and 2^n in one step (n <= 127 there).
template <bool kGelu>
__device__ __forceinline__ float gate_quick(float g) {
  using namespace numerics;
  const float y = gate_argument<kGelu>(g) * -kLog2e;
  const float shifted = y + (kRounder + 127.0f);
  const float f = y - (shifted - (kRounder + 127.0f));
  const float p = (((kPow0 * f + kPow1) * f + kPow2) * f + kPow3) * f + 1.0f;
  // 1 + exp: the product is exact, so the sum is rounded once, as in the contract.
  const float divisor = __fmaf_rn(p, __uint_as_float(__float_as_uint(shifted) << 23), 1.0f);
  const float estimate = reciprocal_estimate(divisor);
  const float quotient = g * estimate;
  return __fmaf_rn(-__fmaf_rn(divisor, quotient, -g), estimate, quotient);
}

// gate(g) for any 16-bit g, without the branches of a division for all floats: one large gate among thousands must not
// hold up a kernel.
template <bool kGelu>
__device__ __forceinline__ float gate_wide(float g) {
  using namespace numerics;
  constexpr float kScale = 0x1p-2f;  // keeps the estimate normal, where the divisor is not
  const float x = fminf(fmaxf(-gate_argument<kGelu>(g), kExpMin), kExpMax);
  const float y = x * kLog2e;
  const float shifted = y + (kRounder + 126.0f);
  const float f = y - (shifted - (kRounder + 126.0f));
  const float p = (((kPow0 * f + kPow1) * f + kPow2) * f + kPow3) * f + 1.0f;
  const float half = p * __uint_as_float(__float_as_uint(shifted) << 23);
  const float divisor = __fmaf_rn(half, 2.0f, 1.0f) * kScale;
  const float numerator = g * kScale;
  const float estimate = reciprocal_estimate(divisor);
  const float quotient = numerator * estimate;
  const float residual = __fmaf_rn(divisor, quotient, -numerator);
  // Where g, the divisor or both are infinite there is no residual, and the quotient is right.
  return isnan(residual) ? quotient : __fmaf_rn(-residual, estimate, quotient);
}

}  // namespace cuda
}  // namespace edge_ops

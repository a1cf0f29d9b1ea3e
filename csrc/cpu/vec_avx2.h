// 16 float32 lanes in two 256-bit registers. Included inside the level's anonymous namespace.
// The halves are named members: gcc 12 keeps an array of two in memory (2.5 times slower).

struct Vec {
  __m256 a, b;

  static Vec zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static Vec all(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
};

inline Vec operator+(Vec x, Vec y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline Vec operator-(Vec x, Vec y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline Vec operator*(Vec x, Vec y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline Vec operator/(Vec x, Vec y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }

inline Vec load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, Vec x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}

inline __m128i load8(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
inline __m256 widen8(__m128i bits, bf16) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
inline __m256 widen8(__m128i bits, f16) { return _mm256_cvtph_ps(bits); }

// Nearest even, subnormals kept; NaNs are set to the quiet one.
inline __m256i rounded_bits(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
  const __m256 nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
  return _mm256_castps_si256(
      _mm256_blendv_ps(_mm256_castsi256_ps(rounded), _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000)), nan));
}
inline __m256i narrow(Vec x, bf16) {
  const __m256i lo = _mm256_srli_epi32(rounded_bits(x.a), 16), hi = _mm256_srli_epi32(rounded_bits(x.b), 16);
  return _mm256_permute4x64_epi64(_mm256_packus_epi32(lo, hi), _MM_SHUFFLE(3, 1, 2, 0));
}
inline __m256i narrow(Vec x, f16) {
  return _mm256_set_m128i(_mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT),
                          _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
}

template <class T>
inline Vec load(const T* p) {
  return {widen8(load8(p), T{}), widen8(load8(p + 8), T{})};
}
template <class T>
inline void store(T* p, Vec x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow(x, T{}));
}
#include "copied_parts.h"

inline Vec round_to(Vec x, float) { return x; }
inline Vec round_to(Vec x, bf16) {
  const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000));
  return {_mm256_castsi256_ps(_mm256_and_si256(rounded_bits(x.a), upper)),
          _mm256_castsi256_ps(_mm256_and_si256(rounded_bits(x.b), upper))};
}
inline Vec round_to(Vec x, f16) {
  return {_mm256_cvtph_ps(_mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT)),
          _mm256_cvtph_ps(_mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT))};
}

// min and max return their second operand where one is NaN: x passes through.
inline Vec at_least(float bound, Vec x) {
  const __m256 m = _mm256_set1_ps(bound);
  return {_mm256_max_ps(m, x.a), _mm256_max_ps(m, x.b)};
}
inline Vec at_most(float bound, Vec x) {
  const __m256 m = _mm256_set1_ps(bound);
  return {_mm256_min_ps(m, x.a), _mm256_min_ps(m, x.b)};
}
// The low bits moved to where a float keeps its exponent.
inline __m256 bits_to_exponent8(__m256 x) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(x), 23)); }
inline Vec bits_to_exponent(Vec x) { return {bits_to_exponent8(x.a), bits_to_exponent8(x.b)}; }

#include "power_by_bits.h"

// Activations work on one vector at a time: more would not fit the registers.
constexpr int kInterleave = 1;

// Lanes of the last steps of a halving tree.
using Four = __m128;
inline Four to_four(Vec x) {
  const __m256 eight = _mm256_add_ps(x.a, x.b);
  return _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
}

// Even and odd elements of 32 neighbours, and back.
inline __m256 in_order(__m256 x) {  // of the 64-bit quarters 0 2 1 3
  return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(x), _MM_SHUFFLE(3, 1, 2, 0)));
}
inline void split_pairs(Vec lo, Vec hi, Vec& even, Vec& odd) {
  even = {in_order(_mm256_shuffle_ps(lo.a, lo.b, _MM_SHUFFLE(2, 0, 2, 0))),
          in_order(_mm256_shuffle_ps(hi.a, hi.b, _MM_SHUFFLE(2, 0, 2, 0)))};
  odd = {in_order(_mm256_shuffle_ps(lo.a, lo.b, _MM_SHUFFLE(3, 1, 3, 1))),
         in_order(_mm256_shuffle_ps(hi.a, hi.b, _MM_SHUFFLE(3, 1, 3, 1)))};
}
inline Vec join8(__m256 even, __m256 odd) {
  const __m256 lo = _mm256_unpacklo_ps(even, odd), hi = _mm256_unpackhi_ps(even, odd);
  return {_mm256_permute2f128_ps(lo, hi, 0x20), _mm256_permute2f128_ps(lo, hi, 0x31)};
}
inline void join_pairs(Vec even, Vec odd, Vec& lo, Vec& hi) {
  lo = join8(even.a, odd.a);
  hi = join8(even.b, odd.b);
}

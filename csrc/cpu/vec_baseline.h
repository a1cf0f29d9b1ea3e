// 16 float32 lanes in four 128-bit registers, SSE2 only. Included inside the level's anonymous namespace.

struct Vec {
  __m128 a, b, c, d;

  static Vec zero() { return all(0.0f); }
  static Vec all(float x) {
    const __m128 v = _mm_set1_ps(x);
    return {v, v, v, v};
  }
};

inline Vec operator+(Vec x, Vec y) {
  return {_mm_add_ps(x.a, y.a), _mm_add_ps(x.b, y.b), _mm_add_ps(x.c, y.c), _mm_add_ps(x.d, y.d)};
}
inline Vec operator-(Vec x, Vec y) {
  return {_mm_sub_ps(x.a, y.a), _mm_sub_ps(x.b, y.b), _mm_sub_ps(x.c, y.c), _mm_sub_ps(x.d, y.d)};
}
inline Vec operator*(Vec x, Vec y) {
  return {_mm_mul_ps(x.a, y.a), _mm_mul_ps(x.b, y.b), _mm_mul_ps(x.c, y.c), _mm_mul_ps(x.d, y.d)};
}
inline Vec operator/(Vec x, Vec y) {
  return {_mm_div_ps(x.a, y.a), _mm_div_ps(x.b, y.b), _mm_div_ps(x.c, y.c), _mm_div_ps(x.d, y.d)};
}

inline Vec load(const float* p) {
  return {_mm_loadu_ps(p), _mm_loadu_ps(p + 4), _mm_loadu_ps(p + 8), _mm_loadu_ps(p + 12)};
}
inline void store(float* p, Vec x) {
  _mm_storeu_ps(p, x.a);
  _mm_storeu_ps(p + 4, x.b);
  _mm_storeu_ps(p + 8, x.c);
  _mm_storeu_ps(p + 12, x.d);
}

inline __m128i pick(__m128i mask, __m128i yes, __m128i no) {
  return _mm_or_si128(_mm_and_si128(mask, yes), _mm_andnot_si128(mask, no));
}

// Four 16-bit values in the low halves of 32-bit lanes, widened.
inline __m128 widen4(__m128i bits, bf16) { return _mm_castsi128_ps(_mm_slli_epi32(bits, 16)); }
inline __m128 widen4(__m128i bits, f16) {
  const __m128i sign = _mm_slli_epi32(_mm_and_si128(bits, _mm_set1_epi32(0x8000)), 16);
  const __m128i magnitude = _mm_and_si128(bits, _mm_set1_epi32(0x7fff));
  const __m128i shifted = _mm_slli_epi32(magnitude, 13);
  // Normal numbers: rebase the exponent. Infinities and NaNs: all ones. Subnormals: an exact integer.
  const __m128i normal = _mm_add_epi32(shifted, _mm_set1_epi32(112 << 23));
  const __m128i special = _mm_or_si128(shifted, _mm_set1_epi32(0x7f800000));
  const __m128i tiny = _mm_castps_si128(_mm_mul_ps(_mm_cvtepi32_ps(magnitude), _mm_set1_ps(5.9604644775390625e-8f)));
  const __m128i is_special = _mm_cmpgt_epi32(magnitude, _mm_set1_epi32(0x7bff));
  const __m128i is_tiny = _mm_cmplt_epi32(magnitude, _mm_set1_epi32(0x0400));
  return _mm_castsi128_ps(_mm_or_si128(sign, pick(is_special, special, pick(is_tiny, tiny, normal))));
}

// Four floats rounded to nearest even, in the low halves of 32-bit lanes, sign-extended for packs.
inline __m128i narrow4(__m128 x, bf16) {
  const __m128i bits = _mm_castps_si128(x);
  const __m128i odd = _mm_and_si128(_mm_srli_epi32(bits, 16), _mm_set1_epi32(1));
  const __m128i rounded = _mm_add_epi32(_mm_add_epi32(bits, _mm_set1_epi32(0x7fff)), odd);
  const __m128i nan = _mm_castps_si128(_mm_cmpunord_ps(x, x));
  return _mm_srai_epi32(pick(nan, _mm_set1_epi32(0x7fc00000), rounded), 16);
}
inline __m128i narrow4(__m128 x, f16) {
  const __m128i bits = _mm_castps_si128(x);
  const __m128i sign = _mm_and_si128(bits, _mm_set1_epi32(static_cast<int>(0x80000000)));
  const __m128i magnitude = _mm_xor_si128(bits, sign);
  // Normal result: rebase the exponent and round the 13 bits that go.
  const __m128i odd = _mm_and_si128(_mm_srli_epi32(magnitude, 13), _mm_set1_epi32(1));
  const __m128i rebased = _mm_sub_epi32(magnitude, _mm_set1_epi32(112 << 23));
  const __m128i normal = _mm_srli_epi32(_mm_add_epi32(_mm_add_epi32(rebased, _mm_set1_epi32(0xfff)), odd), 13);
  // Subnormal result: adding 0.5 lines the value up with the last place of a half and rounds it there.
  const __m128i half = _mm_castps_si128(_mm_set1_ps(0.5f));
  const __m128i tiny =
      _mm_sub_epi32(_mm_castps_si128(_mm_add_ps(_mm_castsi128_ps(magnitude), _mm_set1_ps(0.5f))), half);
  const __m128i is_tiny = _mm_cmplt_epi32(magnitude, _mm_set1_epi32(113 << 23));
  const __m128i is_large = _mm_cmpgt_epi32(magnitude, _mm_set1_epi32(0x477fefff));  // rounds to 65536
  const __m128i is_nan = _mm_cmpgt_epi32(magnitude, _mm_set1_epi32(0x7f800000));
  const __m128i special = pick(is_nan, _mm_set1_epi32(0x7e00), _mm_set1_epi32(0x7c00));
  const __m128i result = pick(is_large, special, pick(is_tiny, tiny, normal));
  return _mm_srai_epi32(_mm_slli_epi32(_mm_or_si128(result, _mm_srli_epi32(sign, 16)), 16), 16);
}

template <class T>
inline Vec load_narrow(const T* p) {
  const __m128i zero = _mm_setzero_si128();
  const __m128i lo = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  const __m128i hi = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8));
  return {widen4(_mm_unpacklo_epi16(lo, zero), T{}), widen4(_mm_unpackhi_epi16(lo, zero), T{}),
          widen4(_mm_unpacklo_epi16(hi, zero), T{}), widen4(_mm_unpackhi_epi16(hi, zero), T{})};
}
template <class T>
inline void store_narrow(T* p, Vec x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm_packs_epi32(narrow4(x.a, T{}), narrow4(x.b, T{})));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm_packs_epi32(narrow4(x.c, T{}), narrow4(x.d, T{})));
}
inline Vec load(const bf16* p) { return load_narrow(p); }
inline void store(bf16* p, Vec x) { store_narrow(p, x); }
// Calls: sixty instructions in each of hundreds of places would be half a megabyte.
__attribute__((noinline)) Vec load(const f16* p) { return load_narrow(p); }
__attribute__((noinline)) void store(f16* p, Vec x) { store_narrow(p, x); }
#include "copied_parts.h"

inline Vec round_to(Vec x, float) { return x; }
template <class T>
inline Vec round_to(Vec x, T) {
  T buffer[16];
  store(buffer, x);
  return load(buffer);
}

// min and max return their second operand where one is NaN: x passes through.
inline Vec at_least(float bound, Vec x) {
  const __m128 m = _mm_set1_ps(bound);
  return {_mm_max_ps(m, x.a), _mm_max_ps(m, x.b), _mm_max_ps(m, x.c), _mm_max_ps(m, x.d)};
}
inline Vec at_most(float bound, Vec x) {
  const __m128 m = _mm_set1_ps(bound);
  return {_mm_min_ps(m, x.a), _mm_min_ps(m, x.b), _mm_min_ps(m, x.c), _mm_min_ps(m, x.d)};
}
// The low bits moved to where a float keeps its exponent.
inline __m128 bits_to_exponent4(__m128 x) { return _mm_castsi128_ps(_mm_slli_epi32(_mm_castps_si128(x), 23)); }
inline Vec bits_to_exponent(Vec x) {
  return {bits_to_exponent4(x.a), bits_to_exponent4(x.b), bits_to_exponent4(x.c), bits_to_exponent4(x.d)};
}

#include "power_by_bits.h"

// Activations work on one vector at a time: more would not fit the registers.
constexpr int kInterleave = 1;

// Lanes of the last steps of a halving tree.
using Four = __m128;
inline Four to_four(Vec x) { return _mm_add_ps(_mm_add_ps(x.a, x.c), _mm_add_ps(x.b, x.d)); }

// Even and odd elements of 32 neighbours, and back.
inline void split_pairs(Vec lo, Vec hi, Vec& even, Vec& odd) {
  constexpr int e = _MM_SHUFFLE(2, 0, 2, 0), o = _MM_SHUFFLE(3, 1, 3, 1);
  even = {_mm_shuffle_ps(lo.a, lo.b, e), _mm_shuffle_ps(lo.c, lo.d, e), _mm_shuffle_ps(hi.a, hi.b, e),
          _mm_shuffle_ps(hi.c, hi.d, e)};
  odd = {_mm_shuffle_ps(lo.a, lo.b, o), _mm_shuffle_ps(lo.c, lo.d, o), _mm_shuffle_ps(hi.a, hi.b, o),
         _mm_shuffle_ps(hi.c, hi.d, o)};
}
inline void join_pairs(Vec even, Vec odd, Vec& lo, Vec& hi) {
  lo = {_mm_unpacklo_ps(even.a, odd.a), _mm_unpackhi_ps(even.a, odd.a), _mm_unpacklo_ps(even.b, odd.b),
        _mm_unpackhi_ps(even.b, odd.b)};
  hi = {_mm_unpacklo_ps(even.c, odd.c), _mm_unpackhi_ps(even.c, odd.c), _mm_unpacklo_ps(even.d, odd.d),
        _mm_unpackhi_ps(even.d, odd.d)};
}

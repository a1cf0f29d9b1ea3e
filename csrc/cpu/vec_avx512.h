// 16 float32 lanes in one 512-bit register. Included inside the level's anonymous namespace.

struct Vec {
  __m512 v;

  static Vec zero() { return {_mm512_setzero_ps()}; }
  static Vec all(float x) { return {_mm512_set1_ps(x)}; }
};

inline Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Vec operator/(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }

inline __mmask16 first(int n) { return static_cast<__mmask16>((1u << n) - 1); }

inline Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline Vec load_n(const float* p, int n) { return {_mm512_maskz_loadu_ps(first(n), p)}; }
inline void store(float* p, Vec x) { _mm512_storeu_ps(p, x.v); }
inline void store_n(float* p, Vec x, int n) { _mm512_mask_storeu_ps(p, first(n), x.v); }

inline Vec widen(__m256i bits, bf16) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
}
inline Vec widen(__m256i bits, f16) { return {_mm512_cvtph_ps(bits)}; }

// Nearest even. vcvtneps2bf16 would be one instruction, but it flushes subnormals; a NaN must stay one,
// so where a vector holds any, its bits are set by hand.
inline __m512i rounded_bits(Vec x) {
  const __m512i bits = _mm512_castps_si512(x.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  return _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
}
inline __m512i quiet_nans(Vec x, __m512i rounded) {
  const __mmask16 nan = _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q);
  return _mm512_mask_mov_epi32(rounded, nan, _mm512_set1_epi32(0x7fc00000));
}
// Every other 16-bit element, the upper halves of 32-bit ones: of one vector, or of two after each other.
inline __m512i upper_halves() {
  return _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29, 27, 25, 23, 21, 19,
                          17, 15, 13, 11, 9, 7, 5, 3, 1);
}
inline __m256i narrow_bits(__m512i bits) {
  return _mm512_castsi512_si256(_mm512_permutexvar_epi16(upper_halves(), bits));
}
inline __m256i narrow(Vec x, bf16) { return narrow_bits(quiet_nans(x, rounded_bits(x))); }
inline __m256i narrow(Vec x, f16) { return _mm512_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT); }

template <class T>
inline Vec load(const T* p) {
  return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), T{});
}
template <class T>
inline Vec load_n(const T* p, int n) {
  return widen(_mm256_maskz_loadu_epi16(first(n), p), T{});
}
template <class T>
inline void store(T* p, Vec x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow(x, T{}));
}
template <class T>
inline void store_n(T* p, Vec x, int n) {
  _mm256_mask_storeu_epi16(p, first(n), narrow(x, T{}));
}

// 32 elements at once.
template <class T>
inline void store2(T* p, Vec lo, Vec hi) {
  store(p, lo);
  store(p + 16, hi);
}
inline void store2(bf16* p, Vec lo, Vec hi) {
  __m512i a = rounded_bits(lo), b = rounded_bits(hi);
  if (__builtin_expect(_mm512_cmp_ps_mask(lo.v, hi.v, _CMP_UNORD_Q) != 0, 0)) {
    a = quiet_nans(lo, a);
    b = quiet_nans(hi, b);
  }
  _mm512_storeu_si512(p, _mm512_permutex2var_epi16(a, upper_halves(), b));
}

inline Vec round_to(Vec x, float) { return x; }
inline Vec round_to(Vec x, bf16) {
  return {_mm512_castsi512_ps(
      _mm512_and_si512(quiet_nans(x, rounded_bits(x)), _mm512_set1_epi32(static_cast<int>(0xffff0000))))};
}
// As the generic one in rows.inl, with the bits rounded once.
inline Vec store_rounded(bf16* p, Vec x) {
  const __m512i bits = quiet_nans(x, rounded_bits(x));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow_bits(bits));
  return {_mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32(static_cast<int>(0xffff0000))))};
}
inline Vec round_to(Vec x, f16) { return widen(narrow(x, f16{}), f16{}); }

// Activations work on so many vectors at a time.
constexpr int kInterleave = 4;

// To +-89 with the sign of z. A NaN becomes a number here; it stays a NaN in the gate that divides.
inline Vec clamp_exponent(Vec z) {
  constexpr int kSmallerMagnitude = 2;
  return {_mm512_range_ps(z.v, _mm512_set1_ps(numerics::kExpMax), kSmallerMagnitude)};
}
struct Power {
  Vec exponent;
};
inline Power nearest_power(Vec y) {
  return {{_mm512_roundscale_ps(y.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}};
}
inline Vec times_power(Vec p, Power power) { return {_mm512_scalef_ps(p.v, power.exponent.v)}; }

// Lanes of the last steps of a halving tree.
using Four = __m128;
inline Four to_four(Vec x) {
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
  return _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
}

// Even and odd elements of 32 neighbours, and back.
inline void split_pairs(Vec lo, Vec hi, Vec& even, Vec& odd) {
  const __m512i e = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
  const __m512i o = _mm512_set_epi32(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
  even.v = _mm512_permutex2var_ps(lo.v, e, hi.v);
  odd.v = _mm512_permutex2var_ps(lo.v, o, hi.v);
}
inline void join_pairs(Vec even, Vec odd, Vec& lo, Vec& hi) {
  const __m512i l = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  const __m512i h = _mm512_set_epi32(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8);
  lo.v = _mm512_permutex2var_ps(even.v, l, odd.v);
  hi.v = _mm512_permutex2var_ps(even.v, h, odd.v);
}

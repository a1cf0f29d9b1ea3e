// 16 float32 lanes in four 128-bit registers, ARMv8.0 NEON. Included inside the level's anonymous namespace.

struct Vec {
  float32x4_t a, b, c, d;

  static Vec zero() { return all(0.0f); }
  static Vec all(float x) {
    const float32x4_t v = vdupq_n_f32(x);
    return {v, v, v, v};
  }
};

inline Vec operator+(Vec x, Vec y) {
  return {vaddq_f32(x.a, y.a), vaddq_f32(x.b, y.b), vaddq_f32(x.c, y.c), vaddq_f32(x.d, y.d)};
}
inline Vec operator-(Vec x, Vec y) {
  return {vsubq_f32(x.a, y.a), vsubq_f32(x.b, y.b), vsubq_f32(x.c, y.c), vsubq_f32(x.d, y.d)};
}
inline Vec operator*(Vec x, Vec y) {
  return {vmulq_f32(x.a, y.a), vmulq_f32(x.b, y.b), vmulq_f32(x.c, y.c), vmulq_f32(x.d, y.d)};
}
inline Vec operator/(Vec x, Vec y) {
  return {vdivq_f32(x.a, y.a), vdivq_f32(x.b, y.b), vdivq_f32(x.c, y.c), vdivq_f32(x.d, y.d)};
}

inline Vec load(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)}; }
inline void store(float* p, Vec x) {
  vst1q_f32(p, x.a);
  vst1q_f32(p + 4, x.b);
  vst1q_f32(p + 8, x.c);
  vst1q_f32(p + 12, x.d);
}

inline float32x4_t widen4(uint16x4_t bits, bf16) { return vreinterpretq_f32_u32(vshll_n_u16(bits, 16)); }
inline float32x4_t widen4(uint16x4_t bits, f16) { return vcvt_f32_f16(vreinterpret_f16_u16(bits)); }

// Nearest even; NaNs are set to the quiet one.
inline uint32x4_t rounded_bits(float32x4_t x) {
  const uint32x4_t bits = vreinterpretq_u32_f32(x);
  const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  const uint32x4_t rounded = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd);
  return vbslq_u32(vceqq_f32(x, x), rounded, vdupq_n_u32(0x7fc00000));
}
inline uint16x4_t narrow4(float32x4_t x, bf16) { return vshrn_n_u32(rounded_bits(x), 16); }
inline uint16x4_t narrow4(float32x4_t x, f16) { return vreinterpret_u16_f16(vcvt_f16_f32(x)); }

template <class T>
inline Vec load(const T* p) {
  const uint16_t* bits = reinterpret_cast<const uint16_t*>(p);
  const uint16x8_t lo = vld1q_u16(bits), hi = vld1q_u16(bits + 8);
  return {widen4(vget_low_u16(lo), T{}), widen4(vget_high_u16(lo), T{}), widen4(vget_low_u16(hi), T{}),
          widen4(vget_high_u16(hi), T{})};
}
template <class T>
inline void store(T* p, Vec x) {
  uint16_t* bits = reinterpret_cast<uint16_t*>(p);
  vst1q_u16(bits, vcombine_u16(narrow4(x.a, T{}), narrow4(x.b, T{})));
  vst1q_u16(bits + 8, vcombine_u16(narrow4(x.c, T{}), narrow4(x.d, T{})));
}

#include "copied_parts.h"

inline Vec round_to(Vec x, float) { return x; }
inline float32x4_t round4(float32x4_t x, bf16) {
  return vreinterpretq_f32_u32(vandq_u32(rounded_bits(x), vdupq_n_u32(0xffff0000)));
}
inline float32x4_t round4(float32x4_t x, f16) { return vcvt_f32_f16(vcvt_f16_f32(x)); }
template <class T>
inline Vec round_to(Vec x, T) {
  return {round4(x.a, T{}), round4(x.b, T{}), round4(x.c, T{}), round4(x.d, T{})};
}

// vmaxq and vminq would turn a NaN beside a number into another NaN or the number: compare and select.
inline float32x4_t at_least4(float32x4_t m, float32x4_t x) { return vbslq_f32(vcltq_f32(x, m), m, x); }
inline float32x4_t at_most4(float32x4_t m, float32x4_t x) { return vbslq_f32(vcgtq_f32(x, m), m, x); }
inline Vec at_least(float bound, Vec x) {
  const float32x4_t m = vdupq_n_f32(bound);
  return {at_least4(m, x.a), at_least4(m, x.b), at_least4(m, x.c), at_least4(m, x.d)};
}
inline Vec at_most(float bound, Vec x) {
  const float32x4_t m = vdupq_n_f32(bound);
  return {at_most4(m, x.a), at_most4(m, x.b), at_most4(m, x.c), at_most4(m, x.d)};
}
// The low bits moved to where a float keeps its exponent.
inline float32x4_t bits_to_exponent4(float32x4_t x) {
  return vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(x), 23));
}
inline Vec bits_to_exponent(Vec x) {
  return {bits_to_exponent4(x.a), bits_to_exponent4(x.b), bits_to_exponent4(x.c), bits_to_exponent4(x.d)};
}

#include "power_by_bits.h"

// Activations work on one vector at a time: more would not fit the registers.
constexpr int kInterleave = 1;

// Lanes of the last steps of a halving tree.
using Four = float32x4_t;
inline Four to_four(Vec x) { return vaddq_f32(vaddq_f32(x.a, x.c), vaddq_f32(x.b, x.d)); }

// Even and odd elements of 32 neighbours, and back.
inline void split_pairs(Vec lo, Vec hi, Vec& even, Vec& odd) {
  even = {vuzp1q_f32(lo.a, lo.b), vuzp1q_f32(lo.c, lo.d), vuzp1q_f32(hi.a, hi.b), vuzp1q_f32(hi.c, hi.d)};
  odd = {vuzp2q_f32(lo.a, lo.b), vuzp2q_f32(lo.c, lo.d), vuzp2q_f32(hi.a, hi.b), vuzp2q_f32(hi.c, hi.d)};
}
inline void join_pairs(Vec even, Vec odd, Vec& lo, Vec& hi) {
  lo = {vzip1q_f32(even.a, odd.a), vzip2q_f32(even.a, odd.a), vzip1q_f32(even.b, odd.b), vzip2q_f32(even.b, odd.b)};
  hi = {vzip1q_f32(even.c, odd.c), vzip2q_f32(even.c, odd.c), vzip1q_f32(even.d, odd.d), vzip2q_f32(even.d, odd.d)};
}

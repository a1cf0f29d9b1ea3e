// The last steps of a reduction on four lanes, as in four_x86.h.

// From four trees of four lanes each, their four sums: lanes (0 + 2) + (1 + 3) of a, b, c and d.
inline Four sums_of_four(Four a, Four b, Four c, Four d) {
  const Four ab =
      vcombine_f32(vadd_f32(vget_low_f32(a), vget_high_f32(a)), vadd_f32(vget_low_f32(b), vget_high_f32(b)));
  const Four cd =
      vcombine_f32(vadd_f32(vget_low_f32(c), vget_high_f32(c)), vadd_f32(vget_low_f32(d), vget_high_f32(d)));
  return vaddq_f32(vuzp1q_f32(ab, cd), vuzp2q_f32(ab, cd));
}
inline float sum_of_four(Four x) {
  const float32x2_t two = vadd_f32(vget_low_f32(x), vget_high_f32(x));
  return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
// (0 + 1) + (2 + 3): four neighbours of the tree across chunks.
inline float pair_sum(Four x) {
  const float32x2_t pairs = vpadd_f32(vget_low_f32(x), vget_high_f32(x));
  return vget_lane_f32(pairs, 0) + vget_lane_f32(pairs, 1);
}
inline Four four_zeros() { return vdupq_n_f32(0.0f); }
inline void store(float* p, Four x) { vst1q_f32(p, x); }

// 1 / sqrt(sum / n + eps), each step rounded.
inline Four inverse_rms(Four sum, float n, float eps) {
  const Four mean = vdivq_f32(sum, vdupq_n_f32(n));
  return vdivq_f32(vdupq_n_f32(1.0f), vsqrtq_f32(vaddq_f32(mean, vdupq_n_f32(eps))));
}
inline float inverse_rms(float sum, float n, float eps) {
  return vgetq_lane_f32(inverse_rms(vdupq_n_f32(sum), n, eps), 0);
}

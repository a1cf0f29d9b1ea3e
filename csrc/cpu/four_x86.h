// The last steps of a reduction on four lanes, the same on every x86 level.

// From four trees of four lanes each, their four sums: lanes (0 + 2) + (1 + 3) of a, b, c and d.
inline Four sums_of_four(Four a, Four b, Four c, Four d) {
  const Four ab = _mm_add_ps(_mm_movelh_ps(a, b), _mm_movehl_ps(b, a));
  const Four cd = _mm_add_ps(_mm_movelh_ps(c, d), _mm_movehl_ps(d, c));
  return _mm_add_ps(_mm_shuffle_ps(ab, cd, _MM_SHUFFLE(2, 0, 2, 0)), _mm_shuffle_ps(ab, cd, _MM_SHUFFLE(3, 1, 3, 1)));
}
inline float sum_of_four(Four x) {
  const Four two = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
// (0 + 1) + (2 + 3): four neighbours of the tree across chunks.
inline float pair_sum(Four x) {
  const Four pairs = _mm_add_ps(x, _mm_shuffle_ps(x, x, _MM_SHUFFLE(2, 3, 0, 1)));
  return _mm_cvtss_f32(_mm_add_ss(pairs, _mm_movehl_ps(pairs, pairs)));
}
inline Four four_zeros() { return _mm_setzero_ps(); }
inline void store(float* p, Four x) { _mm_storeu_ps(p, x); }

// 1 / sqrt(sum / n + eps), each step rounded.
inline Four inverse_rms(Four sum, float n, float eps) {
  const Four mean = _mm_div_ps(sum, _mm_set1_ps(n));
  return _mm_div_ps(_mm_set1_ps(1.0f), _mm_sqrt_ps(_mm_add_ps(mean, _mm_set1_ps(eps))));
}
inline float inverse_rms(float sum, float n, float eps) { return _mm_cvtss_f32(inverse_rms(_mm_set_ss(sum), n, eps)); }

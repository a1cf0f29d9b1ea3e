// Powers of two for ISAs without an instruction for them. Included after the Vec.

inline Vec clamp_exponent(Vec z) { return at_most(-numerics::kExpMin, at_least(-numerics::kExpMax, z)); }

// n, the whole number nearest to y (|y| < 2^21), and 2^(n - 1). Adding 1.5 * 2^23 + 126 puts n + 126 into the low
// bits of the sum, rounded to nearest even; 126 is the exponent field of 2^-1. The field is 0, the value 0, for
// n = -126. A NaN's half is arbitrary, and what it is multiplied with is NaN too.
struct Power {
  Vec exponent, half;
};
inline Power nearest_power(Vec y) {
  const Vec shift = Vec::all(12582912.0f + 126.0f);
  const Vec sum = y + shift;
  return {sum - shift, bits_to_exponent(sum)};
}
inline Vec times_power(Vec p, Power power) {
  const Vec half = p * power.half;
  return half + half;
}

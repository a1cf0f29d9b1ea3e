// Tries out, on the CPU and for every operand, the shortcuts of csrc/cuda/numerics.cuh that start from the GPU's
// estimates of 1 / sqrt(v) and 1 / d: for which estimates do they give the correctly rounded results?
//
// Prints, for estimates that are k ulp away from the correctly rounded one, `root k WRONG_ROOTS WRONG_RECIPROCALS`
// (over all mantissas and both parities of the exponent, roots whose mantissa is all ones left out, as the kernel does)
// and `quick TYPE GATE k WRONG` (over every 16-bit gate in the range of the shortcut) and `wide ...` (over every one).
//
// Compile with -ffp-contract=off and fused multiply-add instructions.
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "../../csrc/numerics/constants.h"

namespace {

using namespace edge_ops::numerics;

float from_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

uint32_t to_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  return bits;
}

void try_roots(int k) {
  long wrong_roots = 0, wrong_reciprocals = 0;
  for (uint32_t parity = 0; parity < 2; parity++) {
    for (uint32_t mantissa = 0; mantissa < (1u << 23); mantissa++) {
      const float v = from_bits(((127 + parity) << 23) | mantissa);
      const float estimate = from_bits(to_bits(static_cast<float>(1.0 / sqrt(static_cast<double>(v)))) + k);
      float root = v * estimate, half = 0.5f * estimate;
      const float error = fmaf(-half, root, 0.5f);
      root = fmaf(root, error, root);
      half = fmaf(half, error, half);
      root = fmaf(fmaf(-root, root, v), half, root);
      const float inverse = half + half, rest = fmaf(-root, inverse, 1.0f);
      const float result = fmaf(inverse, fmaf(rest, rest, rest), inverse);
      wrong_roots += root != sqrtf(v);
      if ((to_bits(root) & 0x7fffffu) != 0x7fffffu) wrong_reciprocals += result != 1.0f / root;
    }
  }
  printf("root %d %ld %ld\n", k, wrong_roots, wrong_reciprocals);
}

float from_half(uint32_t bits) {
  const uint32_t exponent = (bits >> 10) & 31, mantissa = bits & 1023;
  const float magnitude = exponent == 0 ? ldexpf(static_cast<float>(mantissa), -24)
                          : exponent == 31
                              ? (mantissa != 0 ? NAN : INFINITY)
                              : ldexpf(static_cast<float>(mantissa + 1024), static_cast<int>(exponent) - 25);
  return bits & 0x8000 ? -magnitude : magnitude;
}

float argument(float g, bool gelu) { return gelu ? (g * kGeluScale) * (1.0f + kGeluCubic * (g * g)) : g; }

float polynomial(float f) { return (((kPow0 * f + kPow1) * f + kPow2) * f + kPow3) * f + 1.0f; }

// As the contract has it.
float gate(float g, bool gelu) {
  float x = -argument(g, gelu);
  x = x < kExpMin ? kExpMin : x;
  x = x > kExpMax ? kExpMax : x;
  if (isnan(x)) return x;
  const float y = x * kLog2e, n = rintf(y);
  const float half = polynomial(y - n) * from_bits(static_cast<uint32_t>(static_cast<int>(n) + 126) << 23);
  return g / (1.0f + (half + half));
}

// A GPU's estimate of 1 / divisor: powers of two have an exact one, subnormal results are 0.
float estimate_of(float divisor, int k) {
  const float exact = 1.0f / divisor;
  if (exact < 0x1p-126f) return 0.0f;
  return (to_bits(divisor) & 0x7fffffu) == 0 ? exact : from_bits(to_bits(exact) + k);
}

// As gate_quick has it.
float quick_gate(float g, bool gelu, int k) {
  const float y = argument(g, gelu) * -kLog2e, rounder = 12582912.0f + 127.0f;
  const float shifted = y + rounder, f = y - (shifted - rounder);
  const float divisor = fmaf(polynomial(f), from_bits(to_bits(shifted) << 23), 1.0f);
  const float estimate = estimate_of(divisor, k), quotient = g * estimate;
  const volatile float residual = fmaf(divisor, quotient, -g);  // volatile: a moved sign would change that of a zero
  return fmaf(-residual, estimate, quotient);
}

// As gate_wide has it.
float wide_gate(float g, bool gelu, int k) {
  const float scale = 0x1p-2f, x = fminf(fmaxf(-argument(g, gelu), kExpMin), kExpMax);
  const float y = x * kLog2e, rounder = 12582912.0f + 126.0f;
  const float shifted = y + rounder, f = y - (shifted - rounder);
  const float half = polynomial(f) * from_bits(to_bits(shifted) << 23);
  const float divisor = fmaf(half, 2.0f, 1.0f) * scale, numerator = g * scale;
  const float estimate = estimate_of(divisor, k), quotient = numerator * estimate;
  const volatile float residual = fmaf(divisor, quotient, -numerator);
  return isnan(residual) ? quotient : fmaf(-residual, estimate, quotient);
}

void try_quotients(bool half_precision, bool gelu, int k) {
  long wrong_quick = 0, wrong_wide = 0;
  for (uint32_t bits = 0; bits < 65536; bits++) {
    const float g = half_precision ? from_half(bits) : from_bits(bits << 16);
    const float want = gate(g, gelu), wide = wide_gate(g, gelu, k);
    wrong_wide += to_bits(want) != to_bits(wide) && !(isnan(want) && isnan(wide));
    if (fabsf(g) <= (gelu ? 10.0f : 80.0f)) wrong_quick += to_bits(want) != to_bits(quick_gate(g, gelu, k));
  }
  const char *type = half_precision ? "float16" : "bfloat16", *name = gelu ? "gelu_tanh" : "silu";
  printf("quick %s %s %d %ld\nwide %s %s %d %ld\n", type, name, k, wrong_quick, type, name, k, wrong_wide);
}

}  // namespace

int main() {
  for (int k = -4; k <= 4; k++) try_roots(k);
  for (int k = -1; k <= 1; k++) {
    for (int which = 0; which < 4; which++) try_quotients(which & 1, which & 2, k);
  }
}

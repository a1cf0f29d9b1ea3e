// The constants of the numerics contract (docs/numerics.md), shared by every backend.
#pragma once

namespace edge_ops {
namespace numerics {

// Elements that one halving tree reduces.
constexpr int kChunk = 256;

// exp: the argument is cut to this range before anything else.
constexpr float kExpMin = -87.0f;
constexpr float kExpMax = 89.0f;
constexpr float kLog2e = 1.44269504f;

// exp for float32 rows: Cody-Waite split of ln 2 and a degree-6 polynomial (Cephes' expf).
constexpr float kLn2Hi = 0.693359375f;
constexpr float kLn2Lo = -2.12194440e-4f;
constexpr float kExp0 = 1.9875691500e-4f;
constexpr float kExp1 = 1.3981999507e-3f;
constexpr float kExp2 = 8.3334519073e-3f;
constexpr float kExp3 = 4.1665795894e-2f;
constexpr float kExp4 = 1.6666665459e-1f;
constexpr float kExp5 = 5.0000001201e-1f;

// exp for 16-bit rows: degree-4 polynomial of 2^f, f the fraction of x * log2(e).
constexpr float kPow0 = 0.009582852f;
constexpr float kPow1 = 0.05590643f;
constexpr float kPow2 = 0.24024099f;
constexpr float kPow3 = 0.69312418f;

// tanh-GELU as g * sigmoid((g * kGeluScale) * (1 + kGeluCubic * g^2)); the scale is 2 sqrt(2 / pi).
constexpr float kGeluScale = 1.5957691216f;
constexpr float kGeluCubic = 0.044715f;

}  // namespace numerics
}  // namespace edge_ops

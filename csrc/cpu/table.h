// What one ISA level offers: row kernels behind plain function pointers. Plain data only, since the ISA
// files include it.
#pragma once

#include <stdint.h>

namespace edge_ops {

// `rows` rows of n elements, a constant stride (in elements) apart. Data is untyped here: a kernel is
// picked by dtype from the table.
struct NormRows {
  const void* x;
  void* out;
  void* residual;      // fused_add_rms_norm only: read, and overwritten by x + residual
  const void* weight;  // nullptr: no weight
  int64_t n, rows;
  int64_t x_stride, out_stride, residual_stride;
  float eps, weight_offset;
};

struct GateRows {
  const void* x;  // gate at [0, d), up at [d, 2 d)
  void* out;
  int64_t d, rows;
  int64_t x_stride, out_stride;
};

// The heads of one token.
struct Heads {
  const void* x;
  void* out;
  const void* weight;  // nullptr: no weight
  const void* cos;     // `half` angles each; nullptr: the token is not rotated
  const void* sin;
  int64_t heads, head_size, half;
  int64_t x_stride, out_stride;  // between heads
  float eps, weight_offset;
  bool wide_weight, wide_cache;  // float32 beside 16-bit heads
  bool interleaved, round_normalized;
};

using NormKernel = void (*)(const NormRows&);
using GateKernel = void (*)(const GateRows&);
using HeadsKernel = void (*)(const Heads&);

// First index: dtype of the rows (float32, bfloat16, float16). An index named `wide` is 1 where the weight
// is float32 beside 16-bit rows.
struct RowTable {
  const char* name;
  NormKernel rms_norm[3][2];              // [dtype][wide weight]
  NormKernel add_rms_norm[3][2];          // [dtype][wide weight]
  GateKernel silu[3], gelu_tanh[3];       // [dtype]
  HeadsKernel rotate[3], norm_rotate[3];  // [dtype]
};

namespace baseline {
extern const RowTable table;
}
namespace avx2 {
extern const RowTable table;
}
namespace avx512 {
extern const RowTable table;
}
namespace neon {
extern const RowTable table;
}

}  // namespace edge_ops

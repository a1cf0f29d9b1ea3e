// One record and one check an operator. Every binding fills a record and calls its check before it runs it.
//
// A check returns nullptr, or which argument is refused and why: a short form of what the Python package's
// checks.py says in full.
#pragma once

#include "tensor.h"

namespace edge_ops {

struct RmsNorm {
  Tensor x, weight, out;  // weight may be absent
  float eps, weight_offset;
};

struct FusedAddRmsNorm {
  Tensor x, residual, weight;  // weight may be absent
  float eps, weight_offset;
};

enum class Gate : uint8_t { kSilu, kGeluTanh };

struct GatedActivation {
  Tensor x, out;
  Gate gate;
};

// rotary_embedding (normalize false) and fused_qk_norm_rope: one or both of query and key.
// In place, an `out` equals its input.
struct QkRope {
  struct Heads {
    Tensor in, out, weight;
  };
  Tensor positions, cos_sin_cache;
  Heads query, key;
  float eps, weight_offset;
  bool normalize, interleaved, round_normalized;
};

// The part that does not concern `out`, for calls that allocate it.
const char* check_input(const RmsNorm& op);
const char* check_input(const GatedActivation& op);

const char* check(const RmsNorm& op);
const char* check(const FusedAddRmsNorm& op);
const char* check(const GatedActivation& op);
const char* check(const QkRope& op);

}  // namespace edge_ops

#include "ops.h"

namespace edge_ops {
namespace {

bool is_rows(const Tensor& t, int rank) { return t.rank >= rank && is_row_dtype(t.dtype); }

bool last_is_contiguous(const Tensor& t) { return t.size(1) <= 1 || t.stride[t.rank - 1] == 1; }

bool same_shape(const Tensor& a, const Tensor& b) {
  if (a.rank != b.rank) return false;
  for (int d = 0; d < a.rank; d++) {
    if (a.shape[d] != b.shape[d]) return false;
  }
  return true;
}

bool like(const Tensor& t, const Tensor& rows) {
  return t.dtype == rows.dtype && t.device == rows.device && same_shape(t, rows);
}

bool is_weight(const Tensor& w, int64_t size, const Tensor& rows) {
  return w.rank == 1 && (w.dtype == rows.dtype || w.dtype == DType::kFloat32) && w.shape[0] == size &&
         last_is_contiguous(w) && w.device == rows.device;
}

// A tensor of a call that compares many: where it lies is worked out once.
struct Placed {
  const Tensor& tensor;
  const Extent extent;

  explicit Placed(const Tensor& t) : tensor(t), extent(t) {}
  bool overlaps(const Placed& other) const { return extent.meets(other.extent) && overlap(tensor, other.tensor); }
};

// `written` may be the same elements as `read`, or apart from it.
bool apart_or_same(const Placed& written, const Placed& read) {
  return same_memory(written.tensor, read.tensor) || !written.overlaps(read);
}

}  // namespace

const char* check_input(const RmsNorm& op) {
  if (!is_rows(op.x, 1)) return "x: must be [..., hidden] of float32, bfloat16 or float16";
  if (!last_is_contiguous(op.x)) return "x: must be contiguous in its last dimension";
  if (op.weight.present() && !is_weight(op.weight, op.x.size(1), op.x))
    return "weight: must be [hidden], contiguous, of x's dtype or float32, on x's device";
  return nullptr;
}

const char* check(const RmsNorm& op) {
  if (const char* problem = check_input(op)) return problem;
  if (!like(op.out, op.x)) return "out: must have x's shape, dtype and device";
  if (!last_is_contiguous(op.out)) return "out: must be contiguous in its last dimension";
  if (overlaps_itself(op.out)) return "out: is written and must not overlap itself";
  if (!apart_or_same(Placed(op.out), Placed(op.x))) return "out: must be x itself or not overlap it";
  if (op.weight.present() && overlap(op.out, op.weight)) return "out: must not overlap weight";
  return nullptr;
}

const char* check(const FusedAddRmsNorm& op) {
  if (!is_rows(op.x, 1)) return "x: must be [..., hidden] of float32, bfloat16 or float16";
  if (!like(op.residual, op.x)) return "residual: must have x's shape, dtype and device";
  if (!last_is_contiguous(op.x)) return "x: must be contiguous in its last dimension";
  if (!last_is_contiguous(op.residual)) return "residual: must be contiguous in its last dimension";
  if (op.weight.present() && !is_weight(op.weight, op.x.size(1), op.x))
    return "weight: must be [hidden], contiguous, of x's dtype or float32, on x's device";
  if (overlaps_itself(op.x)) return "x: is written and must not overlap itself";
  if (overlaps_itself(op.residual)) return "residual: is written and must not overlap itself";
  if (overlap(op.x, op.residual)) return "x: must not overlap residual";
  if (op.weight.present() && overlap(op.x, op.weight)) return "x: must not overlap weight";
  if (op.weight.present() && overlap(op.residual, op.weight)) return "residual: must not overlap weight";
  return nullptr;
}

const char* check_input(const GatedActivation& op) {
  const Tensor& x = op.x;
  if (!is_rows(x, 1) || x.size(1) % 2 != 0) return "x: must be [..., 2 * d] of float32, bfloat16 or float16";
  if (!last_is_contiguous(x)) return "x: must be contiguous in its last dimension";
  return nullptr;
}

const char* check(const GatedActivation& op) {
  if (const char* problem = check_input(op)) return problem;
  const Tensor &x = op.x, &out = op.out;
  bool fits = out.rank == x.rank && out.dtype == x.dtype && out.device == x.device;
  for (int d = 0; fits && d < x.rank; d++) fits = out.shape[d] == (d + 1 < x.rank ? x.shape[d] : x.shape[d] / 2);
  if (!fits) return "out: must be [..., d] of x's dtype on x's device";
  if (!last_is_contiguous(out)) return "out: must be contiguous in its last dimension";
  if (overlaps_itself(out)) return "out: is written and must not overlap itself";
  if (overlap(out, x)) return "out: must not overlap x";
  return nullptr;
}

const char* check(const QkRope& op) {
  const QkRope::Heads* both[2] = {&op.query, &op.key};
  const Tensor& first = op.query.in.present() ? op.query.in : op.key.in;
  if (!first.present()) return "query: query and key must not both be absent";
  for (const QkRope::Heads* side : both) {
    if (!side->in.present()) continue;
    if (!is_rows(side->in, 2)) return "query, key: must be [..., heads, head_size] of float32, bfloat16 or float16";
    if (!last_is_contiguous(side->in)) return "query, key: must be contiguous in the last dimension";
  }
  if (op.query.in.present() && op.key.in.present()) {
    const Tensor& key = op.key.in;
    bool fits = key.rank == first.rank && key.dtype == first.dtype && key.device == first.device;
    for (int d = 0; fits && d < key.rank; d++) fits = d == key.rank - 2 || key.shape[d] == first.shape[d];
    if (!fits) return "key: must have query's dtype, device, leading shape and head size";
  }

  const Tensor& positions = op.positions;
  if (positions.dtype != DType::kInt32 && positions.dtype != DType::kInt64) return "positions: must be int32 or int64";
  int64_t tokens = 1;
  bool leading = positions.rank == first.rank - 2;
  for (int d = 0; d < first.rank - 2; d++) {
    tokens *= first.shape[d];
    leading = leading && positions.shape[d] == first.shape[d];
  }
  if (!leading && !(positions.rank == 1 && positions.shape[0] == tokens))
    return "positions: must be [tokens] or query's leading shape";
  if (!(positions.device == first.device)) return "positions: must be on query's device";

  const Tensor& cache = op.cos_sin_cache;
  if (cache.dtype != first.dtype && cache.dtype != DType::kFloat32)
    return "cos_sin_cache: must be float32 or query's dtype";
  if (cache.rank != 2 || cache.shape[1] % 2 != 0 || cache.shape[1] > first.size(1))
    return "cos_sin_cache: must be [max_position, rotary_dim], rotary_dim even and at most the head size";
  if (!last_is_contiguous(cache)) return "cos_sin_cache: must be contiguous in its last dimension";
  if (!(cache.device == first.device)) return "cos_sin_cache: must be on query's device";

  const Placed placed_positions(positions), placed_cache(cache);
  const Placed in[2] = {Placed(op.query.in), Placed(op.key.in)}, out[2] = {Placed(op.query.out), Placed(op.key.out)},
               weight[2] = {Placed(op.query.weight), Placed(op.key.weight)};
  for (int s = 0; s < 2; s++) {
    const QkRope::Heads& side = *both[s];
    if (!side.in.present()) continue;
    if (side.weight.present() && !is_weight(side.weight, side.in.size(1), side.in))
      return "q_weight, k_weight: must be [head_size], contiguous, of the heads' dtype or float32, on their device";
    if (!like(side.out, side.in)) return "query_out, key_out: must have their input's shape, dtype and device";
    if (!last_is_contiguous(side.out)) return "query_out, key_out: must be contiguous in the last dimension";
    if (overlaps_itself(side.out)) return "query, key: what is written must not overlap itself";
    if (!apart_or_same(out[s], in[s])) return "query_out, key_out: must be their input itself or not overlap it";
    if (out[s].overlaps(placed_positions)) return "query, key: what is written must not overlap positions";
    if (out[s].overlaps(placed_cache)) return "query, key: what is written must not overlap cos_sin_cache";
    for (int other = 0; other < 2; other++) {
      if (!both[other]->in.present()) continue;
      if (both[other]->weight.present() && out[s].overlaps(weight[other]))
        return "query, key: what is written must not overlap a weight";
      if (other != s && (out[s].overlaps(in[other]) || out[s].overlaps(out[other])))
        return "query, key: must not overlap each other";
    }
  }
  return nullptr;
}

}  // namespace edge_ops

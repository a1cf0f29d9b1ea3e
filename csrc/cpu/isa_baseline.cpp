// The row kernels for any x86-64 (SSE2).
// Nothing but the intrinsics and <stdint.h> may be included here, and nothing may have external linkage but
// the table: an inline function shared with another object could end up as this level's copy for everyone.
#if defined(__x86_64__)

#include <immintrin.h>
#include <stdint.h>

#include "../numerics/constants.h"
#include "table.h"

namespace edge_ops {
namespace baseline {
namespace {
#include "storage.h"
#include "vec_baseline.h"

#include "four_x86.h"
#include "rows.inl"
}  // namespace

const RowTable table = EDGE_OPS_ROW_TABLE("baseline");

}  // namespace baseline
}  // namespace edge_ops

#endif

// The row kernels for AArch64 (NEON, part of every ARMv8.0 processor). Built with contraction off, like all of
// this library: NEON's multiply and add must not become one.
// Nothing but the intrinsics and <stdint.h> may be included here.
#if defined(__aarch64__)

#include <arm_neon.h>
#include <stdint.h>

#include "../numerics/constants.h"
#include "table.h"

namespace edge_ops {
namespace neon {
namespace {
#include "storage.h"
#include "vec_neon.h"

#include "four_neon.h"
#include "rows.inl"
}  // namespace

const RowTable table = EDGE_OPS_ROW_TABLE("neon");

}  // namespace neon
}  // namespace edge_ops

#endif

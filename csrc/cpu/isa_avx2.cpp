// The row kernels for AVX2 with F16C.
// Nothing but the intrinsics and <stdint.h> may be included here, and nothing may have external linkage but
// the table: an inline function shared with another object could end up as this level's copy for everyone.
#if defined(__x86_64__)

#include <immintrin.h>
#include <stdint.h>

#include "../numerics/constants.h"
#include "table.h"

// After the headers, so that what they define inline keeps the baseline's instructions. The source chooses
// the level: builds that share one flag list for every architecture need no flag for it.
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif

namespace edge_ops {
namespace avx2 {
namespace {
#include "storage.h"
#include "vec_avx2.h"

#include "four_x86.h"
#include "rows.inl"
}  // namespace

const RowTable table = EDGE_OPS_ROW_TABLE("avx2");

}  // namespace avx2
}  // namespace edge_ops

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif

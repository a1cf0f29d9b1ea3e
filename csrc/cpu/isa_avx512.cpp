// The row kernels for AVX-512 (F, BW, DQ, VL).
// Nothing but the intrinsics and <stdint.h> may be included here, and nothing may have external linkage but
// the table: an inline function shared with another object could end up as this level's copy for everyone.
#if defined(__x86_64__)

// gcc 12 takes the deliberately undefined operand inside its own AVX-512 intrinsics for a mistake.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include <immintrin.h>
#include <stdint.h>

#include "../numerics/constants.h"
#include "table.h"

// After the headers, so that what they define inline keeps the baseline's instructions. The source chooses
// the level: builds that share one flag list for every architecture need no flag for it.
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl")
#endif

namespace edge_ops {
namespace avx512 {
namespace {
#include "storage.h"
#include "vec_avx512.h"

#include "four_x86.h"
#include "rows.inl"
}  // namespace

const RowTable table = EDGE_OPS_ROW_TABLE("avx512");

}  // namespace avx512
}  // namespace edge_ops

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif

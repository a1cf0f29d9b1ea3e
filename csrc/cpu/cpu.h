// The CPU backend: runs checked records on the ISA level that was chosen when the library was loaded.
#pragma once

#include "../ops/ops.h"

namespace edge_ops {
namespace cpu {

// body(begin, end, context) over pieces of [0, n) of at least `grain`, on a pool that the caller owns.
using ParallelFor = void (*)(int64_t begin, int64_t end, int64_t grain, void (*body)(int64_t, int64_t, void*),
                             void* context);

// The levels in this build, lowest first, and whether this host can run each.
struct Level {
  const char* name;
  bool offered;
};
int levels(const Level** out);

// Picks the level, once, before the first run: the highest that the host offers, or `limit` if given.
// Returns nullptr, or what is wrong with `limit`.
const char* choose_level(const char* limit, ParallelFor parallel_for);
const char* chosen_level();

void run(const RmsNorm& op);
void run(const FusedAddRmsNorm& op);
void run(const GatedActivation& op);
void run(const QkRope& op);

}  // namespace cpu
}  // namespace edge_ops

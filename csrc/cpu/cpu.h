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

// Elements up to which an operator's rows stay on the calling thread, by kind of operator. No choice changes a bit of
// any result. What is built in comes from a sweep; a caller may set others, at any time and from any thread.
struct Grains {
  int64_t norm, gate, heads;
};
Grains grains();
void set_grains(const Grains& grains);

void run(const RmsNorm& op);
void run(const FusedAddRmsNorm& op);
void run(const GatedActivation& op);
void run(const QkRope& op);

}  // namespace cpu
}  // namespace edge_ops

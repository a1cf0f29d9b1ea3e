// The operators on CUDA. Plain C++: what a caller needs, without the toolkit's headers.
#pragma once

#include "../ops/ops.h"

namespace edge_ops {
namespace cuda {

// How an operator is laid out on the GPU. The result does not depend on it: every plan gives the same bits.
struct Plan {
  // The kernel: `kRegisters` keeps a row (a head, a vector) in registers, `kLanes` shares a warp among narrow rows,
  // `kAny` takes every length, stride and alignment.
  enum Kernel : uint8_t { kRegisters, kLanes, kAny } kernel;
  int elements;  // contiguous elements of a load
  int repeats;   // loads a thread holds at once: chunks of a row, heads of a token
  int threads;   // a block
  // Programmatic dependent launch, on devices that have it. `kInChains`: in a stream, where it takes a tenth off the
  // price of the launch, and in a graph that is being captured right behind another of these kernels; there, behind any
  // other kernel, it costs more than it gains.
  enum Dependent : uint8_t { kNever, kAlways, kInChains } dependent;
};

Plan plan(const RmsNorm& op);
Plan plan(const FusedAddRmsNorm& op);
Plan plan(const GatedActivation& op);
Plan plan(const QkRope& op);

// Launches a checked operator on `stream` of device `device`: no allocation, no synchronization. The stream is asked
// whether it is being captured.
// Returns nullptr or an error's text.
const char* run(const RmsNorm& op, int device, void* stream);
const char* run(const FusedAddRmsNorm& op, int device, void* stream);
const char* run(const GatedActivation& op, int device, void* stream);
const char* run(const QkRope& op, int device, void* stream);

// The same with a plan of the caller's, for tests and sweeps. A plan that does not fit the operator is an error.
const char* run(const RmsNorm& op, const Plan& plan, int device, void* stream);
const char* run(const FusedAddRmsNorm& op, const Plan& plan, int device, void* stream);
const char* run(const GatedActivation& op, const Plan& plan, int device, void* stream);
const char* run(const QkRope& op, const Plan& plan, int device, void* stream);

}  // namespace cuda
}  // namespace edge_ops

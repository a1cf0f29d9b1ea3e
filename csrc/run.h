// Runs a checked record on the backend of its device. `stream` is the device's current stream (nullptr on
// the CPU). Returns nullptr, or why it could not be run.
#pragma once

#include "ops/ops.h"

namespace edge_ops {

// Whether this build has kernels for a device type.
bool has_backend(DeviceType type);

const char* run(const RmsNorm& op, void* stream);
const char* run(const FusedAddRmsNorm& op, void* stream);
const char* run(const GatedActivation& op, void* stream);
const char* run(const QkRope& op, void* stream);

}  // namespace edge_ops

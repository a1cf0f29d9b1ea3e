#include "run.h"

#include "cpu/cpu.h"
#ifdef CUDA_KERNEL
#include "cuda/cuda.h"
#endif

namespace edge_ops {
namespace {

template <class Op>
const char* run_on(const Op& op, const Device& device, void* stream) {
  if (device.type == DeviceType::kCpu) {
    cpu::run(op);
    return nullptr;
  }
#ifdef CUDA_KERNEL
  if (device.type == DeviceType::kCuda) return cuda::run(op, device.index, stream);
#else
  (void)stream;
#endif
  return "this build has no kernels for that device";
}

}  // namespace

bool has_backend(DeviceType type) {
#ifdef CUDA_KERNEL
  if (type == DeviceType::kCuda) return true;
#endif
  return type == DeviceType::kCpu;
}

const char* run(const RmsNorm& op, void* stream) { return run_on(op, op.x.device, stream); }
const char* run(const FusedAddRmsNorm& op, void* stream) { return run_on(op, op.x.device, stream); }
const char* run(const GatedActivation& op, void* stream) { return run_on(op, op.x.device, stream); }
const char* run(const QkRope& op, void* stream) {
  return run_on(op, op.query.in.present() ? op.query.in.device : op.key.in.device, stream);
}

}  // namespace edge_ops

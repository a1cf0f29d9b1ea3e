// Launching kernels, and the layouts that they are given.
#pragma once

#include <cuda_runtime.h>

#include <atomic>

#include "cuda.h"

namespace edge_ops {
namespace cuda {

constexpr unsigned kAllLanes = 0xffffffffu;

// --- programmatic dependent launch ------------------------------------------------------
//
// A dependent kernel may start while the kernel before it in the stream is still running. Every kernel here waits
// for that kernel's end, in every thread, before its first access to memory, weights included: whether somebody
// computes a weight on the GPU cannot be known here. Only then does it let the next kernel start, so that at most
// two neighbours overlap and the end of a kernel implies the end of all before it.
__device__ __forceinline__ void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// A hint that reads nothing, and so may come before the wait: memory that the kernel will read goes to L2.
__device__ __forceinline__ void prefetch(const void* from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from)); }

// Before the wait: one thread a block has its multiprocessor look up the addresses, whose translations are then at
// hand. It is worth 0.07 us to the norms and 0.2 us to 32 rows of an activation; the norm with an addition and the
// rotations are faster without it. Of many blocks only the first are early enough, and the rest would queue for the
// lines that all share. No pointer may be null.
template <class... Pointers>
__device__ __forceinline__ void warm_addresses(Pointers... pointers) {
  if (threadIdx.x == 0 && blockIdx.x < 128) (prefetch(pointers), ...);
}

// Has the value in a register from here on: what is needed after a wait is worked out before it.
__device__ __forceinline__ void settle(void*& pointer) {
  size_t address = __cvta_generic_to_global(pointer);  // and it stays known as an address of global memory
  asm volatile("" : "+l"(address));
  pointer = __cvta_global_to_generic(address);
}

__device__ __forceinline__ void settle(uint32_t& value) { asm volatile("" : "+r"(value)); }

// --- layouts ----------------------------------------------------------------------------

// Rows of N tensors that lie behind up to kMaxRank strides.
template <int N>
struct Nested {
  int32_t rank;
  int64_t size[kMaxRank];
  int64_t stride[N][kMaxRank];

  Nested() = default;
  explicit Nested(const Walk<N>& walk) : rank(walk.rank) {
    for (int d = 0; d < rank; d++) {
      size[d] = walk.size[d];
      for (int t = 0; t < N; t++) stride[t][d] = walk.stride[t][d];
    }
  }

  __device__ void offsets(int64_t row, int64_t (&result)[N]) const {
    for (int t = 0; t < N; t++) result[t] = 0;
    for (int d = rank - 1; d >= 0; d--) {
      const int64_t i = d == 0 ? row : row % size[d];
      for (int t = 0; t < N; t++) result[t] += i * stride[t][d];
      row /= size[d];
    }
  }
};

// Walks `rank` dimensions of N tensors. The order of independent rows is free, so the widest strides of the first
// tensor go outside: a transposed tensor written to its like is then one run of rows.
template <int N>
Walk<N> walk_rows(int rank, const int64_t* shape, const int64_t* const (&strides)[N]) {
  int order[kMaxRank];
  for (int d = 0; d < rank; d++) {
    int place = d;
    for (; place > 0 && strides[0][order[place - 1]] < strides[0][d]; place--) order[place] = order[place - 1];
    order[place] = d;
  }
  Walk<N> walk;
  for (int i = 0; i < rank; i++) {
    int64_t of_dimension[N];
    for (int t = 0; t < N; t++) of_dimension[t] = strides[t][order[i]];
    walk.push(shape[order[i]], of_dimension);
  }
  return walk;
}

// Division of numbers below 2^31 by a number fixed at the launch.
struct Divisor {
  uint32_t value = 0, multiplier = 0, shift = 0;

  Divisor() = default;
  explicit Divisor(uint32_t divisor) : value(divisor) {
    while ((uint64_t{1} << shift) < divisor) shift++;
    multiplier = static_cast<uint32_t>(((uint64_t{1} << (31 + shift)) + divisor - 1) / divisor);
  }
  __device__ __forceinline__ uint32_t quotient(uint32_t n) const { return __umulhi(n << 1, multiplier) >> shift; }
};

constexpr int64_t kMaxIndex = int64_t{1} << 30;  // indices of one launch stay below; longer work takes several

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

inline bool aligned(const void* data, int64_t bytes) { return reinterpret_cast<uintptr_t>(data) % bytes == 0; }

// Whether `bytes`-wide accesses fit a tensor that is walked by this stride (in elements).
inline bool aligned(const Tensor& t, int64_t stride, int64_t bytes) {
  return aligned(t.data, bytes) && stride * element_size(t.dtype) % bytes == 0;
}

inline int32_t bytes_of_stride(const Tensor& t, int64_t stride) {
  return static_cast<int32_t>(stride * element_size(t.dtype));
}

// Kernels that keep rows in registers index and step with 32 bits: one multiply-add an address.
constexpr int64_t kMaxStride = INT32_MAX;  // bytes

inline bool is_short(int64_t stride_in_bytes) {
  return stride_in_bytes >= -kMaxStride && stride_in_bytes <= kMaxStride;
}

__device__ __forceinline__ const void* step(const void* base, int32_t index, int32_t stride) {
  return static_cast<const char*>(base) + static_cast<int64_t>(index) * stride;
}

__device__ __forceinline__ void* step(void* base, int32_t index, int32_t stride) {
  return static_cast<char*>(base) + static_cast<int64_t>(index) * stride;
}

// --- launches ---------------------------------------------------------------------------

inline const char* error_text(cudaError_t error) {
  if (error == cudaSuccess) return nullptr;
  cudaGetLastError();  // so that nobody finds it later and takes it for their own
  return cudaGetErrorString(error);
}

// Whether a device has programmatic dependent launch: asked once a device, not once a call.
inline bool has_dependent_launch(int device) {
  constexpr int kDevices = 64;
  static std::atomic<int8_t> known[kDevices];  // 0: not asked yet, 1: no, 2: yes
  if (device < 0 || device >= kDevices) return false;
  int8_t answer = known[device].load(std::memory_order_relaxed);
  if (answer == 0) {
    int major = 0;
    if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess) return false;
    answer = major >= 9 ? 2 : 1;
    known[device].store(answer, std::memory_order_relaxed);
  }
  return answer == 2;
}

// Makes a device current for the time of a call, where it is not.
class OnDevice {
 public:
  explicit OnDevice(int device) {
    error_ = cudaGetDevice(&previous_);
    if (error_ != cudaSuccess || previous_ == device) return;
    error_ = cudaSetDevice(device);
    changed_ = error_ == cudaSuccess;
  }
  ~OnDevice() {
    if (changed_) cudaSetDevice(previous_);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  cudaError_t error() const { return error_; }

 private:
  int previous_ = 0;
  bool changed_ = false;
  cudaError_t error_;
};

struct Target {
  int device;
  cudaStream_t stream;
};

// The last node of a stream that is being captured into a graph.
struct Tail {
  bool captured = false;
  unsigned long long capture = 0;  // of all captures of the process, which one
  cudaGraphNode_t node = nullptr;  // nullptr: none, or several

  bool operator==(const Tail& other) const { return capture == other.capture && node == other.node; }
};

inline Tail tail_of(cudaStream_t stream) {
  Tail tail;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(stream, &status) != cudaSuccess) cudaGetLastError();
  if (status != cudaStreamCaptureStatusActive) return tail;
  const cudaGraphNode_t* nodes = nullptr;
  const cudaGraphEdgeData* edges = nullptr;
  size_t count = 0;
#if CUDART_VERSION >= 13000
  const auto capture_info = cudaStreamGetCaptureInfo;
#else
  const auto capture_info = cudaStreamGetCaptureInfo_v3;
#endif
  if (capture_info(stream, &status, &tail.capture, nullptr, &nodes, &edges, &count) != cudaSuccess) {
    cudaGetLastError();
    return Tail();
  }
  tail.captured = true;
  if (count == 1) tail.node = nodes[0];
  return tail;
}

// What this thread last added to a graph. A hint: it decides how a kernel is launched, never what it computes.
inline Tail& last_captured() {
  static thread_local Tail tail;
  return tail;
}

template <class Arguments>
cudaError_t launch(void (*kernel)(Arguments), int64_t blocks, int threads, const Arguments& arguments,
                   Plan::Dependent dependent, const Target& target) {
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = target.stream;
  config.attrs = &attribute;
  const bool possible = dependent != Plan::kNever && has_dependent_launch(target.device);
  Tail before;
  if (possible && dependent == Plan::kInChains) before = tail_of(target.stream);
  const bool chained = !before.captured || (before.node != nullptr && before == last_captured());
  config.numAttrs = possible && (dependent == Plan::kAlways || chained) ? 1 : 0;
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, arguments);
  if (before.captured) last_captured() = tail_of(target.stream);
  return error;
}

}  // namespace cuda
}  // namespace edge_ops

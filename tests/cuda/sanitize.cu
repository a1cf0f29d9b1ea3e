// Every plan of every kernel on small shapes, each tensor in an allocation of exactly its size, for compute-sanitizer:
//
//     nvcc -std=c++17 -lineinfo -fmad=false -arch=native -o sanitize csrc/ops/*.cpp csrc/cuda/*.cu
//     tests/cuda/sanitize.cu compute-sanitizer --tool memcheck --error-exitcode 1 ./sanitize       and racecheck,
//     initcheck, synccheck
//
// Prints how many launches ran. Results are not looked at here: test_plans.py does that.
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <initializer_list>
#include <vector>

#include "../../csrc/cuda/cuda.h"

namespace {

using namespace edge_ops;
using cuda::Plan;

int launches = 0;

void fail(const char* what, const char* why) {
  fprintf(stderr, "%s: %s\n", what, why);
  exit(1);
}

void require(cudaError_t error, const char* what) {
  if (error != cudaSuccess) fail(what, cudaGetErrorString(error));
}

// Tensors of one call. They are freed together.
class Arena {
 public:
  ~Arena() {
    for (void* memory : allocations_) require(cudaFree(memory), "cudaFree");
  }

  // `initialized` false: memory that a kernel must write before anything reads it.
  Tensor tensor(DType dtype, std::initializer_list<int64_t> shape, bool initialized = true) {
    Tensor t;
    t.dtype = dtype;
    t.device = {DeviceType::kCuda, 0};
    t.rank = 0;
    for (const int64_t size : shape) t.shape[t.rank++] = size;
    int64_t stride = 1;
    for (int d = t.rank - 1; d >= 0; d--) t.stride[d] = stride, stride *= t.shape[d];
    const size_t bytes = static_cast<size_t>(t.numel()) * element_size(dtype);
    require(cudaMalloc(&t.data, bytes > 0 ? bytes : 1), "cudaMalloc");
    allocations_.push_back(t.data);
    if (initialized && bytes > 0) {
      // 0x3c3c is 1.06 as float16, 0.0115 as bfloat16; 0x3c3c3c3c is 0.0115 as float32.
      std::vector<unsigned char> host(bytes, 0x3c);
      require(cudaMemcpy(t.data, host.data(), bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
    }
    return t;
  }

  Tensor positions(int64_t tokens, int32_t limit) {
    std::vector<int32_t> host(static_cast<size_t>(tokens));
    for (int64_t i = 0; i < tokens; i++) host[static_cast<size_t>(i)] = static_cast<int32_t>(i * 3) % (limit + 1);
    Tensor t = tensor(DType::kInt32, {tokens}, false);
    require(cudaMemcpy(t.data, host.data(), host.size() * 4, cudaMemcpyHostToDevice), "cudaMemcpy");
    return t;
  }

 private:
  std::vector<void*> allocations_;
};

template <class Op>
void run(const Op& op, const std::vector<Plan>& plans) {
  if (const char* problem = check(op)) fail("check", problem);
  bool ran = false;
  for (const Plan& plan : plans) {
    const char* problem = cuda::run(op, plan, 0, nullptr);
    if (problem != nullptr && strstr(problem, "invalid configuration") == nullptr) fail("run", problem);
    launches += problem == nullptr;
    ran = ran || problem == nullptr;
  }
  if (const char* problem = cuda::run(op, 0, nullptr)) fail("run", problem);
  launches++;
  if (!ran) fail("run", "no plan fitted");
  require(cudaDeviceSynchronize(), "synchronize");
}

void norms(DType dtype) {
  std::vector<Plan> plans = {{Plan::kAny, 1, 1, 0, Plan::kAlways}, {Plan::kRegisters, 1, 1, 0, Plan::kAlways}};
  for (const int threads : {32, 128, 256}) plans.push_back({Plan::kLanes, 8, 1, threads, Plan::kAlways});
  for (const int chunks : {1, 2, 4}) plans.push_back({Plan::kRegisters, 8, chunks, 0, Plan::kAlways});
  for (const int64_t width : {1, 7, 64, 100, 128, 200, 256, 576, 1001, 1152, 8192, 16385}) {
    for (const DType weight : {dtype, DType::kFloat32}) {
      Arena arena;
      RmsNorm norm;
      norm.x = arena.tensor(dtype, {5, width});
      norm.weight = arena.tensor(weight, {width});
      norm.out = arena.tensor(dtype, {5, width}, false);
      norm.eps = 1e-6f, norm.weight_offset = 0.0f;
      run(norm, plans);
      FusedAddRmsNorm fused;
      fused.x = norm.x;
      fused.residual = arena.tensor(dtype, {5, width});
      fused.weight = norm.weight;
      fused.eps = 1e-6f, fused.weight_offset = 1.0f;
      run(fused, plans);
    }
  }
}

void activations(DType dtype) {
  std::vector<Plan> plans = {{Plan::kAny, 1, 1, 0, Plan::kAlways}};
  for (const int elements : {1, 2, 4, 8})
    plans.push_back({Plan::kRegisters, elements, 1, 32 * elements, Plan::kAlways});
  plans.push_back({Plan::kRegisters, 8, 2, 64, Plan::kAlways});
  for (const int64_t d : {1, 37, 64, 100, 1536}) {
    for (const Gate gate : {Gate::kSilu, Gate::kGeluTanh}) {
      Arena arena;
      GatedActivation op;
      op.x = arena.tensor(dtype, {5, 2 * d});
      op.out = arena.tensor(dtype, {5, d}, false);
      op.gate = gate;
      run(op, plans);
    }
  }
}

void heads(DType dtype) {
  std::vector<Plan> plans = {{Plan::kAny, 1, 1, 0, Plan::kAlways}};
  for (const int elements : {4, 8}) {
    for (const int repeats : {1, 2, 4}) plans.push_back({Plan::kRegisters, elements, repeats, 64, Plan::kAlways});
  }
  const struct {
    int64_t size, rotary;
  } shapes[] = {{64, 64},   {80, 80},  {96, 32},   {128, 128}, {128, 96},
                {256, 256}, {256, 64}, {512, 512}, {20, 10},   {1, 0}};
  for (const auto& shape : shapes) {
    for (const int variant : {0, 1, 2, 3, 4, 5, 6, 7}) {
      Arena arena;
      QkRope op;
      op.normalize = variant & 1;
      op.interleaved = variant & 2;
      op.round_normalized = variant & 4;
      op.positions = arena.positions(6, 10);
      op.cos_sin_cache = arena.tensor(op.round_normalized ? DType::kFloat32 : dtype, {10, shape.rotary});
      op.query.in = op.query.out = arena.tensor(dtype, {6, 5, shape.size});
      op.key.in = arena.tensor(dtype, {6, 2, shape.size});
      op.key.out = variant & 1 ? arena.tensor(dtype, {6, 2, shape.size}, false) : op.key.in;
      if (op.normalize) {
        op.query.weight = arena.tensor(dtype, {shape.size});
        op.key.weight = arena.tensor(DType::kFloat32, {shape.size});
      }
      op.eps = 1e-6f, op.weight_offset = 0.0f;
      run(op, plans);
    }
  }
}

}  // namespace

int main() {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    norms(dtype);
    activations(dtype);
    heads(dtype);
  }
  printf("%d launches\n", launches);
  return 0;
}

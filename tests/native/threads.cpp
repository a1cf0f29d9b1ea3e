// Many threads run every operator at once, each of them split over a pool of threads, while another thread changes
// where the split begins. Inputs are shared, results are not. Built with ThreadSanitizer, which knows neither OpenMP
// nor PyTorch: the pool here is made of plain threads. Prints a digest of each caller's results.
//
// `threads race` lets two callers write into one result: what the sanitizer must report.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <atomic>
#include <thread>
#include <vector>

#include "../../csrc/cpu/cpu.h"

using namespace edge_ops;

namespace {

constexpr int64_t kRows = 37, kWidth = 200, kHeads = 5, kSize = 40;
constexpr int kCallers = 6;

// Each piece on a thread of its own.
void pool(int64_t begin, int64_t end, int64_t grain, void (*body)(int64_t, int64_t, void*), void* context) {
  const int64_t step = (end - begin + 2) / 3 > grain ? (end - begin + 2) / 3 : grain;
  std::vector<std::thread> threads;
  for (int64_t at = begin; at < end; at += step) {
    threads.emplace_back(body, at, at + step < end ? at + step : end, context);
  }
  for (std::thread& thread : threads) thread.join();
}

Tensor tensor(std::vector<float>& memory, std::initializer_list<int64_t> shape) {
  Tensor t;
  t.data = memory.data();
  t.rank = static_cast<int32_t>(shape.size());
  t.dtype = DType::kFloat32;
  t.device.type = DeviceType::kCpu;
  int d = 0;
  for (int64_t size : shape) t.shape[d++] = size;
  for (int64_t stride = 1; d-- > 0; stride *= t.shape[d]) t.stride[d] = stride;
  return t;
}

std::vector<float> values(int64_t count, uint32_t seed) {
  std::vector<float> result(static_cast<size_t>(count));
  for (float& value : result) {
    seed = seed * 1664525u + 1013904223u;
    value = static_cast<float>(static_cast<int32_t>(seed)) / 1e9f;
  }
  return result;
}

uint64_t digest(uint64_t hash, const std::vector<float>& memory) {
  for (float value : memory) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    hash = (hash ^ bits) * 1099511628211u;
  }
  return hash;
}

struct Shared {
  std::vector<float> x = values(kRows * kWidth, 1), weight = values(kWidth, 2), cache = values(64 * kSize, 3);
  std::vector<int64_t> positions;
};

template <class Op>
void checked_run(const Op& op) {
  if (const char* problem = check(op)) {
    fprintf(stderr, "%s\n", problem);
    _Exit(2);
  }
  cpu::run(op);
}

uint64_t call_every_operator(Shared& shared, std::vector<float>& out) {
  std::vector<float> x = shared.x, residual = values(kRows * kWidth, 4), gated(kRows * kWidth / 2);
  std::vector<float> query = values(kRows * kHeads * kSize, 5), key = values(kRows * kSize, 6);
  const Tensor weight = tensor(shared.weight, {kWidth});
  const Tensor input = tensor(shared.x, {kRows, kWidth}), result = tensor(out, {kRows, kWidth});
  checked_run(RmsNorm{input, weight, result, 1e-6f, 1.0f});
  uint64_t hash = digest(14695981039346656037u, out);
  checked_run(FusedAddRmsNorm{tensor(x, {kRows, kWidth}), tensor(residual, {kRows, kWidth}), weight, 1e-6f, 0.0f});
  for (Gate gate : {Gate::kSilu, Gate::kGeluTanh}) {
    checked_run(GatedActivation{input, tensor(gated, {kRows, kWidth / 2}), gate});
    hash = digest(hash, gated);
  }
  Tensor positions;
  positions.data = shared.positions.data();
  positions.rank = 1;
  positions.shape[0] = kRows;
  positions.stride[0] = 1;
  positions.dtype = DType::kInt64;
  positions.device.type = DeviceType::kCpu;
  const Tensor q = tensor(query, {kRows, kHeads, kSize}), k = tensor(key, {kRows, 1, kSize}), none{};
  const Tensor angles = tensor(shared.cache, {64, kSize});
  checked_run(QkRope{positions, angles, {q, q, none}, {k, k, none}, 1e-6f, 0.0f, true, false, true});
  checked_run(QkRope{positions, angles, {q, q, none}, {k, k, none}, 0.0f, 0.0f, false, true, false});
  return digest(digest(digest(digest(hash, x), residual), query), key);
}

}  // namespace

int main(int count, char**) {
  if (cpu::choose_level("baseline", pool) != nullptr) return 2;
  Shared shared;
  for (int64_t i = 0; i < kRows; i++) shared.positions.push_back(i * 3 - 2);
  std::vector<std::vector<float>> outs(kCallers, std::vector<float>(kRows * kWidth));
  std::vector<uint64_t> hashes(kCallers);
  std::atomic<bool> done{false};
  std::thread tuner([&] {
    for (int64_t grain = 1; !done; grain = grain % 5000 + 700) cpu::set_grains({grain, grain, grain});
  });
  std::vector<std::thread> callers;
  for (int c = 0; c < kCallers; c++) {
    callers.emplace_back([&, c] {
      for (int i = 0; i < 5; i++) hashes[c] = call_every_operator(shared, outs[count > 1 ? 0 : c]);
    });
  }
  for (std::thread& caller : callers) caller.join();
  done = true;
  tuner.join();
  for (uint64_t hash : hashes) printf("%016llx\n", static_cast<unsigned long long>(hash));
  return 0;
}

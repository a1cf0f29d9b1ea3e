// Runs every row kernel of every level in this program over one corpus and prints a digest of each result: the
// same lines for every level and processor. Knows no PyTorch and no Python, so that a static build runs anywhere,
// under an emulator too.
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <string>
#include <vector>

#include "../../csrc/cpu/table.h"

using namespace edge_ops;

namespace {

uint32_t state = 1;

uint32_t random_bits() {
  state ^= state << 13;
  state ^= state >> 17;
  state ^= state << 5;
  return state;
}

// float32, bfloat16 and float16 as the kernels' tables count them.
constexpr int kItem[] = {4, 2, 2};

// A value of the dtype: mostly moderate numbers, now and then any bit pattern (infinities, NaNs, subnormals).
void put(char* to, int dtype, bool any) {
  uint32_t bits = random_bits();
  if (!any || bits % 31 != 0) {
    const float value = static_cast<float>(static_cast<int32_t>(random_bits() >> 8) - (1 << 23)) / (1 << 21);
    memcpy(&bits, &value, sizeof(bits));
    if (dtype == 1) bits >>= 16;
    if (dtype == 2) bits = (bits >> 16 & 0x8000) | (((bits >> 13) - (112 << 10)) & 0x7fff);
    if (dtype == 2 && fabsf(value) < 1e-4f) bits = 0;
  }
  memcpy(to, &bits, kItem[dtype]);
}

// Rows start off alignment, and past the end lies what must not be touched.
struct Buffer {
  int dtype;
  size_t items;
  std::vector<char> bytes;

  Buffer(int d, size_t n, bool any, bool fill = true) : dtype(d), items(n), bytes(64 + n * kItem[d], 0x5a) {
    for (size_t i = 0; fill && i < n; i++) put(data() + i * kItem[d], d, any);
  }
  char* data() { return bytes.data() + kItem[dtype]; }

  // FNV-1a of the values, every NaN counted as the same, and of what lies around them.
  uint64_t digest() {
    uint64_t hash = 14695981039346656037u;
    auto add = [&](uint32_t word) { hash = (hash ^ word) * 1099511628211u; };
    for (size_t i = 0; i < items; i++) {
      uint32_t bits = 0;
      memcpy(&bits, data() + i * kItem[dtype], kItem[dtype]);
      const uint32_t magnitude = bits & (dtype == 0 ? 0x7fffffffu : 0x7fffu);
      if (magnitude > (dtype == 0 ? 0x7f800000u : dtype == 1 ? 0x7f80u : 0x7c00u)) bits = 0xffffffffu;
      add(bits);
    }
    for (size_t i = (items + 1) * kItem[dtype]; i < bytes.size(); i++) add(static_cast<unsigned char>(bytes[i]));
    return hash;
  }
};

void report(const char* level, const std::string& what, uint64_t digest) {
  printf("%s %s %016llx\n", level, what.c_str(), static_cast<unsigned long long>(digest));
}

const int kSizes[] = {1,   7,   15,  16,  17,  31,   64,   100,  127,  128,  129,
                      255, 256, 257, 576, 640, 1000, 1024, 1025, 2560, 5376, 9001};

void norms(const RowTable& table) {
  for (int dtype = 0; dtype < 3; dtype++) {
    for (int wide = 0; wide < (dtype ? 2 : 1); wide++) {
      for (int n : kSizes) {
        for (int64_t rows : {1, 5}) {
          const std::string name = std::to_string(dtype) + " " + std::to_string(wide) + " " + std::to_string(n) +
                                   " x " + std::to_string(rows);
          state = 1234567u + static_cast<uint32_t>(n);
          const int64_t stride = n + 3;
          Buffer x(dtype, rows * stride, rows == 5), residual(dtype, rows * stride, rows == 5);
          Buffer weight(wide ? 0 : dtype, n, false), out(dtype, rows * stride, false, false);
          NormRows args{x.data(), out.data(), nullptr, weight.data(), n, rows, stride, stride, stride, 1e-6f, 1.0f};
          table.rms_norm[dtype][wide](args);
          report(table.name, "rms_norm " + name, out.digest());
          args.weight = nullptr;
          args.residual = residual.data();
          table.add_rms_norm[dtype][wide](args);
          report(table.name, "add_rms_norm " + name, out.digest() ^ residual.digest());
        }
      }
    }
  }
}

void gates(const RowTable& table) {
  for (int dtype = 0; dtype < 3; dtype++) {
    for (int n : kSizes) {
      state = 7654321u + static_cast<uint32_t>(n);
      Buffer x(dtype, 3 * 2 * n, true), out(dtype, 3 * n, false, false);
      const GateRows args{x.data(), out.data(), n, 3, 2 * n, n};
      table.silu[dtype](args);
      report(table.name, "silu " + std::to_string(dtype) + " " + std::to_string(n), out.digest());
      table.gelu_tanh[dtype](args);
      report(table.name, "gelu_tanh " + std::to_string(dtype) + " " + std::to_string(n), out.digest());
    }
  }
}

void heads(const RowTable& table) {
  const int shapes[][2] = {{2, 2},     {10, 6},   {64, 64},   {80, 80},   {96, 24},
                           {128, 128}, {256, 64}, {256, 256}, {300, 300}, {1100, 1040}};
  for (int dtype = 0; dtype < 3; dtype++) {
    for (auto [size, rotary] : shapes) {
      for (int flags = 0; flags < 16; flags++) {
        state = 424242u + static_cast<uint32_t>(size);
        const bool wide = dtype == 0 || (flags & 8);
        const int64_t count = 7, stride = size + 5;
        Buffer x(dtype, count * stride, false), out(dtype, count * stride, false, false);
        Buffer weight(wide ? 0 : dtype, size, false), cache(wide ? 0 : dtype, rotary, false);
        Heads args{x.data(),
                   out.data(),
                   weight.data(),
                   nullptr,
                   nullptr,
                   count,
                   size,
                   rotary / 2,
                   stride,
                   stride,
                   1e-6f,
                   0.5f,
                   dtype != 0 && wide,
                   dtype != 0 && wide,
                   (flags & 1) != 0,
                   (flags & 2) != 0};
        if (flags & 4) {
          args.cos = cache.data();
          args.sin = cache.data() + rotary / 2 * kItem[wide ? 0 : dtype];
        }
        const std::string name = std::to_string(dtype) + " " + std::to_string(size) + "/" + std::to_string(rotary) +
                                 " flags " + std::to_string(flags);
        table.norm_rotate[dtype](args);
        report(table.name, "norm_rotate " + name, out.digest());
        table.rotate[dtype](args);
        report(table.name, "rotate " + name, out.digest());
      }
    }
  }
}

}  // namespace

int main() {
#if defined(__x86_64__)
  const RowTable* const all[] = {&baseline::table, &avx2::table, &avx512::table};
  const bool offered[] = {
      true, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"),
      __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
          __builtin_cpu_supports("avx512vl")};
#else
  const RowTable* const all[] = {&neon::table};
  const bool offered[] = {true};
#endif
  for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
    if (!offered[i]) continue;
    norms(*all[i]);
    gates(*all[i]);
    heads(*all[i]);
  }
  return 0;
}

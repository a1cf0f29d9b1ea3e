// What an operator knows of a tensor, and the layout questions that every operator asks.
#pragma once

#include <stdint.h>

namespace edge_ops {

// Tensors of more dimensions are not served natively (the Python package then uses its reference).
constexpr int kMaxRank = 8;

enum class DType : uint8_t { kFloat32, kBFloat16, kFloat16, kInt32, kInt64, kOther };

enum class DeviceType : uint8_t { kCpu, kCuda, kOther };

struct Device {
  DeviceType type = DeviceType::kOther;
  int32_t index = 0;
  bool operator==(const Device& other) const { return type == other.type && index == other.index; }
};

// A strided view; strides in elements. An absent optional argument has rank -1.
struct Tensor {
  void* data = nullptr;
  int64_t shape[kMaxRank];
  int64_t stride[kMaxRank];
  int32_t rank = -1;
  DType dtype = DType::kOther;
  Device device;

  bool present() const { return rank >= 0; }
  int64_t size(int from_end) const { return shape[rank - from_end]; }
  int64_t numel() const {
    int64_t n = 1;
    for (int i = 0; i < rank; i++) n *= shape[i];
    return n;
  }
};

inline bool is_row_dtype(DType dtype) { return dtype <= DType::kFloat16; }

inline int element_size(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
    case DType::kInt32:
      return 4;
    case DType::kInt64:
      return 8;
    default:
      return 2;
  }
}

// The outer dimensions of N tensors walked together, neighbours merged where every stride allows it.
// Row i of tensor t starts at offset(t, i); dimension `rank - 1` varies fastest.
template <int N>
struct Walk {
  int32_t rank = 0;
  int64_t count = 1;
  int64_t size[kMaxRank];
  int64_t stride[N][kMaxRank];

  // Appends a dimension inside those already there. With nothing left to merge, order is kept.
  void push(int64_t n, const int64_t (&strides)[N]) {
    count *= n;
    if (n == 1) return;
    if (rank > 0) {
      bool merges = true;
      for (int t = 0; t < N; t++) merges = merges && stride[t][rank - 1] == strides[t] * n;
      if (merges) {
        size[rank - 1] *= n;
        for (int t = 0; t < N; t++) stride[t][rank - 1] = strides[t];
        return;
      }
    }
    size[rank] = n;
    for (int t = 0; t < N; t++) stride[t][rank] = strides[t];
    rank++;
  }

  // Length of the innermost run and the stride of tensor t along it.
  int64_t run() const { return rank ? size[rank - 1] : 1; }
  int64_t run_stride(int t) const { return rank ? stride[t][rank - 1] : 0; }

  int64_t offset(int t, int64_t row) const {
    int64_t result = 0;
    for (int d = rank - 1; d >= 0; d--) {
      result += (row % size[d]) * stride[t][d];
      row /= size[d];
    }
    return result;
  }
};

// The addresses from a tensor's first byte to behind its last; nothing for a tensor without elements.
struct Extent {
  intptr_t begin = 0, end = 0;

  explicit Extent(const Tensor& t) {
    int64_t last = 0;  // the last element
    for (int d = 0; d < t.rank; d++) {
      if (t.shape[d] == 0) return;
      last += (t.shape[d] - 1) * t.stride[d];
    }
    begin = reinterpret_cast<intptr_t>(t.data);
    end = begin + static_cast<intptr_t>((last + 1) * element_size(t.dtype));
  }
  bool meets(const Extent& other) const { return begin < other.end && other.begin < end; }
};

// Whether a tensor that is written has two elements in one place (or strides too tangled to tell).
bool overlaps_itself(const Tensor& t);

// Whether two tensors share memory; exact where strides nest, true where they are too tangled to tell.
bool overlap(const Tensor& a, const Tensor& b);

// The same elements in the same order.
bool same_memory(const Tensor& a, const Tensor& b);

}  // namespace edge_ops

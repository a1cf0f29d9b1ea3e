#include "tensor.h"

namespace edge_ops {
namespace {

// A set of bytes: `item` of them at every combination of steps; the largest stride first.
struct Box {
  int rank = 0;
  int64_t item;
  int64_t stride[kMaxRank];
  int64_t size[kMaxRank];

  explicit Box(const Tensor& t) : item(element_size(t.dtype)) {
    for (int d = 0; d < t.rank; d++) {
      if (t.shape[d] == 1) continue;
      const int64_t bytes = t.stride[d] * item;
      int at = rank++;
      for (; at > 0 && (stride[at - 1] < bytes || (stride[at - 1] == bytes && size[at - 1] < t.shape[d])); at--) {
        stride[at] = stride[at - 1];
        size[at] = size[at - 1];
      }
      stride[at] = bytes;
      size[at] = t.shape[d];
    }
  }

  int64_t span(int from) const {
    int64_t bytes = item;
    for (int d = from; d < rank; d++) bytes += stride[d] * (size[d] - 1);
    return bytes;
  }
};

int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }

// Whether the boxes meet, counting only dimensions from `at_a` and `at_b` on, with b `delta` bytes after a.
bool meet(const Box& a, int at_a, const Box& b, int at_b, int64_t delta) {
  if (delta >= a.span(at_a) || delta + b.span(at_b) <= 0) return false;
  if (at_a == a.rank && at_b == b.rank) return true;
  const int64_t stride_a = at_a < a.rank ? a.stride[at_a] : -1;
  const int64_t stride_b = at_b < b.rank ? b.stride[at_b] : -1;
  const int64_t stride = stride_a > stride_b ? stride_a : stride_b;
  const int rest_a = at_a + (stride_a == stride), rest_b = at_b + (stride_b == stride);
  const int64_t n_a = stride_a == stride ? a.size[at_a] : 1, n_b = stride_b == stride ? b.size[at_b] : 1;
  const int64_t span_a = a.span(rest_a), span_b = b.span(rest_b);
  if (stride <= 0 || span_a > stride || span_b > stride) return true;
  int64_t first = -floor_div(span_a - 1 - delta, stride), last = floor_div(delta + span_b - 1, stride);
  if (first < -(n_b - 1)) first = -(n_b - 1);
  if (last > n_a - 1) last = n_a - 1;
  for (int64_t k = first; k <= last; k++) {
    if (meet(a, rest_a, b, rest_b, delta - k * stride)) return true;
  }
  return false;
}

}  // namespace

bool overlaps_itself(const Tensor& t) {
  if (t.numel() == 0) return false;
  // Most strides nest in the order of the dimensions: ask that before anything is sorted.
  int64_t inside = 1;
  bool nests = true;
  for (int d = t.rank - 1; d >= 0; d--) {
    if (t.shape[d] == 1) continue;
    nests = nests && t.stride[d] >= inside;
    inside += t.stride[d] * (t.shape[d] - 1);
  }
  if (nests) return false;
  const Box box(t);
  int64_t extent = box.item;
  for (int d = box.rank - 1; d >= 0; d--) {
    if (box.stride[d] < extent) return true;
    extent += box.stride[d] * (box.size[d] - 1);
  }
  return false;
}

bool overlap(const Tensor& a, const Tensor& b) {
  // Most tensors live apart: ask that before anything is sorted.
  const Extent extent_a(a), extent_b(b);
  return extent_a.meets(extent_b) && meet(Box(a), 0, Box(b), 0, extent_b.begin - extent_a.begin);
}

bool same_memory(const Tensor& a, const Tensor& b) {
  if (a.data != b.data || a.dtype != b.dtype || a.rank != b.rank) return false;
  for (int d = 0; d < a.rank; d++) {
    if (a.shape[d] != b.shape[d] || (a.shape[d] > 1 && a.stride[d] != b.stride[d])) return false;
  }
  return true;
}

}  // namespace edge_ops

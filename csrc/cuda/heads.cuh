// The kernels of rotary_embedding and fused_qk_norm_rope.
//
// A head lies in a group of lanes as one or two pieces of kVector elements a lane. Two pieces are the head's halves:
// elements i and i + size / 2 then meet in one lane, which is what a full rotation pairs and what the first level of
// the halving tree adds. A group works on kHeads heads of a token, so that their loads overlap and weights, cos and sin
// are read once.
#pragma once

#include "launch.h"
#include "numerics.cuh"

namespace edge_ops {
namespace cuda {

// Query or key. Strides in bytes.
struct Side {
  const void* in;
  void* out;
  const void* weight;
  int32_t in_token, in_outer, in_head, out_token, out_outer, out_head;
  int32_t heads;
  uint32_t items;       // of all tokens; an item: the heads of a token that one group works on
  Divisor token_items;  // of one token
  bool weight_is_float32;
};

struct Rotation {
  const void* positions;
  const void* cache;
  int32_t position_token, position_outer, cache_stride;  // bytes
  int32_t cache_rows;                                    // 0 where nothing is rotated
  int32_t half;                                          // rotary_dim / 2
  bool positions_are_int64, cache_is_float32, interleaved;

  __device__ __forceinline__ int64_t position(const void* at) const {
    return positions_are_int64 ? *static_cast<const int64_t*>(at) : *static_cast<const int32_t*>(at);
  }
};

struct Heads {
  Side sides[2];  // query, key: blocks of the one, then blocks of the other
  int32_t query_blocks;
  Rotation rotation;
  Divisor inner_tokens;  // tokens of the inner level; value 0: there is one level
  int32_t size;          // elements of a head that are read
  int32_t lane_bits;     // log2 of the lanes of a group, where the kernel leaves them open
  MeanSquare mean;
  float weight_offset;
  bool round_normalized;
};

// cos and sin of a lane. Halves: kVector of each, for the elements of the first piece. Interleaved: kVector / 2 of each
// for each piece. The two are kept as the same two parts.
template <class T, int kVector>
struct Angles {
  static constexpr int kPart = kVector / 2;
  Constant<T, kPart> cos_part[2], sin_part[2];

  __device__ __forceinline__ void load(const Rotation& r, int row, int first, int piece_stride) {
    const void* cos_row = step(r.cache, row, r.cache_stride);
#pragma unroll
    for (int p = 0; p < 2; p++) {
      int i = first < r.half ? first + p * kPart : first - r.half + p * kPart;
      if (r.interleaved) i = (first + p * piece_stride) / 2;
      if (i >= r.half) continue;
      cos_part[p].load(cos_row, i, r.cache_is_float32);
      sin_part[p].load(cos_row, i + r.half, r.cache_is_float32);
    }
  }

  __device__ __forceinline__ void get(const Rotation& r, float (&cos)[kVector], float (&sin)[kVector]) const {
#pragma unroll
    for (int p = 0; p < 2; p++) {
      float c[kPart], s[kPart];
      cos_part[p].get(c, r.cache_is_float32);
      sin_part[p].get(s, r.cache_is_float32);
#pragma unroll
      for (int i = 0; i < kPart; i++) cos[p * kPart + i] = c[i], sin[p * kPart + i] = s[i];
    }
  }
};

__device__ __forceinline__ void rotate_pair(float& a, float& b, float cos, float sin) {
  const float first = a * cos - b * sin, second = b * cos + a * sin;
  a = first;
  b = second;
}

// Rotates a lane's part of a head. All lanes of the warp must come here; `rotated` says whose token lies in the cache.
template <class T, int kPieces, int kVector>
__device__ __forceinline__ void rotate(const Heads& op, bool rotated, int lane, int lanes, int piece_stride,
                                       const float (&cos)[kVector], const float (&sin)[kVector],
                                       float (&v)[kPieces][kVector]) {
  const Rotation& r = op.rotation;
  const int first = lane * kVector;
  if (r.interleaved) {
#pragma unroll
    for (int p = 0; p < kPieces; p++) {
      if (!rotated || first + p * piece_stride >= 2 * r.half) continue;
#pragma unroll
      for (int i = 0; i < kVector / 2; i++)
        rotate_pair(v[p][2 * i], v[p][2 * i + 1], cos[p * kVector / 2 + i], sin[p * kVector / 2 + i]);
    }
    return;
  }
  if (kPieces == 2 && r.half == piece_stride) {
    if (!rotated) return;
#pragma unroll
    for (int i = 0; i < kVector; i++) rotate_pair(v[0][i], v[kPieces - 1][i], cos[i], sin[i]);
    return;
  }
  // Both halves of the rotated part lie in the first piece: the partner is another lane.
  const int distance = r.half / kVector;
  const bool second = lane >= distance, inside = lane < 2 * distance;
  const int partner = !inside ? lane : second ? lane - distance : lane + distance;
  const int source = (threadIdx.x & (31 & ~(lanes - 1))) + partner;
  float other[kVector];
  if (T::kSize == 2 && op.round_normalized) {  // the values are those of the storage type: half the words
    Bits<kVector * T::kSize> bits = round_to<T>(v[0]);
#pragma unroll
    for (int i = 0; i < kVector * T::kSize / 4; i++) bits.word[i] = __shfl_sync(kAllLanes, bits.word[i], source);
    widen<T>(bits, other);
  } else {
#pragma unroll
    for (int i = 0; i < kVector; i++) other[i] = __shfl_sync(kAllLanes, v[0][i], source);
  }
  if (!rotated || !inside) return;
#pragma unroll
  for (int i = 0; i < kVector; i++) {
    const float across = other[i] * sin[i];
    v[0][i] = second ? v[0][i] * cos[i] + across : v[0][i] * cos[i] - across;
  }
}

// The sum of squares of a head.
template <int kPieces, int kLanes, int kVector>
__device__ __forceinline__ float sum_of_squares(const float (&v)[kPieces][kVector]) {
  float squares[kPieces][kVector];
#pragma unroll
  for (int p = 0; p < kPieces; p++) {
#pragma unroll
    for (int i = 0; i < kVector; i++) squares[p][i] = v[p][i] * v[p][i];
  }
  if constexpr (kPieces == 2 && kLanes * kVector == numerics::kChunk) {  // each piece is a chunk
    return halving_tree<kLanes>(squares[0]) + halving_tree<kLanes>(squares[1]);
  } else {
    if constexpr (kPieces == 2) {
#pragma unroll
      for (int i = 0; i < kVector; i++) squares[0][i] += squares[1][i];
    }
    return halving_tree<kLanes>(squares[0]);
  }
}

// kNormalize: kLanes lanes a group. Rotation alone needs no sum, and so any number of lanes: kLanes is 0.
template <class T, bool kNormalize, int kPieces, int kLanes, int kVector, int kHeads>
__global__ void __launch_bounds__(512) heads_in_registers(const Heads op) {
  constexpr int kBytes = kVector * T::kSize;
  const Rotation& r = op.rotation;
  const unsigned lanes = kLanes != 0 ? kLanes : 1u << op.lane_bits;
  const unsigned lane = threadIdx.x & (lanes - 1);
  const int first = lane * kVector;
  const int piece_stride = kLanes != 0 ? kLanes * kVector : r.half;
  const bool within = kPieces == 2 && kLanes != 0 ? true : first < (kPieces == 2 ? r.half : op.size);

  // Which token, which heads. Lanes without work follow the first item, for the shuffles, and store nothing.
  const bool is_key = static_cast<int>(blockIdx.x) >= op.query_blocks;
  const Side& side = op.sides[is_key];
  const unsigned block = blockIdx.x - (is_key ? op.query_blocks : 0);
  const unsigned groups = kLanes != 0 ? blockDim.x / lanes : blockDim.x >> op.lane_bits;
  uint32_t index = block * groups + (kLanes != 0 ? threadIdx.x / lanes : threadIdx.x >> op.lane_bits);
  const bool active = index < side.items && within;
  if (index >= side.items) index = 0;
  int token = side.token_items.quotient(index), outer = 0;
  const int head = (index - token * side.token_items.value) * kHeads, heads = side.heads;
  const void* in = step(side.in, head, side.in_head);
  void* out = step(side.out, head, side.out_head);
  const void* positions = r.positions;
  if (op.inner_tokens.value != 0) {
    outer = op.inner_tokens.quotient(token);
    token -= outer * op.inner_tokens.value;
    in = step(in, outer, side.in_outer);
    out = step(out, outer, side.out_outer);
    positions = step(positions, outer, r.position_outer);
  }
  in = at<T>(step(in, token, side.in_token), first);
  out = at<T>(step(out, token, side.out_token), first);
  positions = step(positions, token, r.position_token);
  settle(out);

  if (kNormalize && side.weight != nullptr && threadIdx.x == 0 && block == 0) prefetch(side.weight);
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int64_t position = r.position(positions);
  Bits<kBytes> bits[kHeads][kPieces];
#pragma unroll
  for (int h = 0; h < kHeads; h++) {
#pragma unroll
    for (int p = 0; p < kPieces; p++) {
      bits[h][p] = {};
      if (active && head + h < heads)
        bits[h][p] = load_bits<kBytes>(at<T>(step(in, h, side.in_head), p * piece_stride));
    }
  }
  Constant<T, kVector> weight[kPieces];
  if (kNormalize && side.weight != nullptr && within) {
#pragma unroll
    for (int p = 0; p < kPieces; p++) weight[p].load(side.weight, first + p * piece_stride, side.weight_is_float32);
  }
  const bool rotated = position >= 0 && position < r.cache_rows;
  Angles<T, kVector> angles;
  if (rotated && within) angles.load(r, static_cast<int>(position), first, piece_stride);

  float inverse[kHeads];
  if constexpr (kNormalize) {
    float sums[kHeads];
#pragma unroll
    for (int h = 0; h < kHeads; h++) {
      float v[kPieces][kVector];
#pragma unroll
      for (int p = 0; p < kPieces; p++) widen<T>(bits[h][p], v[p]);
      sums[h] = sum_of_squares<kPieces, kLanes>(v);
    }
#pragma unroll
    for (int h = 0; h < kHeads; h++) inverse[h] = inverse_rms(sums[h], op.mean);
  }

  float cos[kVector], sin[kVector];
  angles.get(r, cos, sin);
#pragma unroll
  for (int h = 0; h < kHeads; h++) {
    float v[kPieces][kVector];
#pragma unroll
    for (int p = 0; p < kPieces; p++) {
      widen<T>(bits[h][p], v[p]);
      if (!kNormalize) continue;
      float gain[kVector];
      if (side.weight != nullptr) weight[p].get(gain, side.weight_is_float32);
#pragma unroll
      for (int i = 0; i < kVector; i++) {
        v[p][i] *= inverse[h];
        if (side.weight != nullptr) v[p][i] *= gain[i] + op.weight_offset;
      }
      if (op.round_normalized) round_in_place<T>(v[p]);
    }
    rotate<T, kPieces, kVector>(op, rotated, lane, lanes, piece_stride, cos, sin, v);
    if (!active || head + h >= heads) continue;
#pragma unroll
    for (int p = 0; p < kPieces; p++) {
      // What is neither normalized nor rotated keeps its bits, those of a NaN too.
      const Bits<kBytes> result = kNormalize || rotated ? round_to<T>(v[p]) : bits[h][p];
      store_bits(at<T>(step(out, h, side.out_head), p * piece_stride), result);
    }
  }
}

// --- any size, stride and alignment: a block a head ---------------------------------------

struct HeadsAny {
  const void* in;
  void* out;
  const void* weight;
  const void* positions;
  const void* cache;
  Nested<3> tokens;  // of in, out and positions
  int64_t in_head, out_head, cache_stride, heads, size, cache_rows, half, first_head;
  MeanSquare mean;
  float weight_offset;
  bool positions_are_int64, cache_is_float32, weight_is_float32, interleaved, round_normalized;
};

constexpr int kAnyThreads = 128;

template <class T>
struct HeadReader {
  const HeadsAny& op;
  const void* in;
  float inverse;

  template <bool kNormalize>
  __device__ float get(int64_t i) const {
    float v[1] = {load_one<T>(in, i)};
    if (!kNormalize) return v[0];
    v[0] *= inverse;
    if (op.weight != nullptr) v[0] *= load_constant<T>(op.weight, i, op.weight_is_float32) + op.weight_offset;
    if (op.round_normalized) round_in_place<T>(v);
    return v[0];
  }
};

template <class T, bool kNormalize>
__global__ void __launch_bounds__(kAnyThreads) heads_any(const HeadsAny op) {
  __shared__ PairCounter<kAnyThreads / 32> counter;
  const int64_t index = op.first_head + blockIdx.x, token = index / op.heads, head = index % op.heads;
  int64_t offset[3];
  op.tokens.offsets(token, offset);
  const void* in = at<T>(op.in, offset[0] + head * op.in_head);
  void* out = at<T>(op.out, offset[1] + head * op.out_head);

  wait_for_previous_kernel();
  let_next_kernel_start();
  const int64_t position = op.positions_are_int64 ? static_cast<const int64_t*>(op.positions)[offset[2]]
                                                  : static_cast<const int32_t*>(op.positions)[offset[2]];
  const bool rotated = position >= 0 && position < op.cache_rows;
  HeadReader<T> reader{op, in, 0.0f};
  if (kNormalize) {
    const float sum = counter.sum_of_squares(op.size, [&](int64_t i) { return load_one<T>(in, i); });
    reader.inverse = inverse_rms(sum, op.mean);
  }

  const int64_t half = rotated ? op.half : 0, cos_row = position * op.cache_stride;
  for (int64_t i = threadIdx.x; i < half; i += kAnyThreads) {
    const int64_t first = op.interleaved ? 2 * i : i, second = op.interleaved ? 2 * i + 1 : i + half;
    float a = reader.template get<kNormalize>(first), b = reader.template get<kNormalize>(second);
    rotate_pair(a, b, load_constant<T>(op.cache, cos_row + i, op.cache_is_float32),
                load_constant<T>(op.cache, cos_row + half + i, op.cache_is_float32));
    store_one<T>(out, first, a);
    store_one<T>(out, second, b);
  }
  for (int64_t i = 2 * half + threadIdx.x; i < op.size; i += kAnyThreads) {
    if (kNormalize) {
      store_one<T>(out, i, reader.template get<true>(i));
    } else {
      store_bits(at<T>(out, i), load_bits<T::kSize>(at<T>(in, i)));
    }
  }
}

}  // namespace cuda
}  // namespace edge_ops

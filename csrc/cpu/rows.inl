// The row kernels, once, over a 16-lane Vec. Included by each ISA file inside its own anonymous namespace,
// after its Vec; defines functions with internal linkage only. docs/numerics.md fixes the order of every
// operation below: do not reorder or fuse.

#define EDGE_OPS_INLINE inline __attribute__((always_inline))

// --- sum of squares --------------------------------------------------------------------

// Where a row's elements come from: `at(i)` gives elements i .. i + 15, `part(i, n)` the last n < 16.
template <class S>
struct Source {
  const S* x;
  EDGE_OPS_INLINE Vec at(int64_t i) const { return load(x + i); }
  EDGE_OPS_INLINE Vec part(int64_t i, int n) const { return load_n(x + i, n); }
};

// The rounded sum of two rows, stored as it is read.
template <class S>
struct SumSource {
  const S* x;
  S* residual;
  EDGE_OPS_INLINE Vec at(int64_t i) const {
    store(residual + i, load(x + i) + load(residual + i));
    return load(residual + i);
  }
  EDGE_OPS_INLINE Vec part(int64_t i, int n) const {
    store_n(residual + i, load_n(x + i, n) + load_n(residual + i, n), n);
    return load_n(residual + i, n);
  }
};

// Node of the halving tree over a chunk's first COUNT vectors: leaves J, J + STEP, J + 2 STEP, ... A half
// of zeros adds +0 to squares, which changes nothing, and is left out.
template <int J, int STEP, int COUNT, class Src>
EDGE_OPS_INLINE Vec tree(const Src& source, int64_t start) {
  if constexpr (STEP >= COUNT) {
    const Vec v = source.at(start + 16 * J);
    return v * v;
  } else {
    return tree<J, 2 * STEP, COUNT>(source, start) + tree<J + STEP, 2 * STEP, COUNT>(source, start);
  }
}

// COUNT full vectors, COUNT a power of two.
template <int COUNT, class Src>
EDGE_OPS_INLINE Four chunk_of(const Src& source, int64_t start) {
  return to_four(tree<0, 1, COUNT>(source, start));
}

// The same for any number of elements, n in 1 .. 256: the tree in memory.
template <class Src>
__attribute__((noinline)) Four chunk(const Src& source, int64_t start, int n) {
  Vec v[16];
  int count = 0;
  for (; 16 * count < n; count++) {
    const int left = n - 16 * count;
    const Vec x = left >= 16 ? source.at(start + 16 * count) : source.part(start + 16 * count, left);
    v[count] = x * x;
  }
  int width = 1;
  while (width < count) width *= 2;
  for (; count < width; count++) v[count] = Vec::zero();
  for (width /= 2; width; width /= 2) {
    for (int j = 0; j < width; j++) v[j] = v[j] + v[j + width];
  }
  return to_four(v[0]);
}

// Four chunks and the first two levels of the tree across chunks; `n` in 1 .. 1024 elements. Chunks that
// are not there count as +0.
template <class Src>
inline float group(const Src& source, int64_t start, int n) {
  constexpr int kChunk = numerics::kChunk;
  if (n == 4 * kChunk) {
    const Four a = chunk_of<16>(source, start), b = chunk_of<16>(source, start + kChunk);
    const Four c = chunk_of<16>(source, start + 2 * kChunk), d = chunk_of<16>(source, start + 3 * kChunk);
    return pair_sum(sums_of_four(a, b, c, d));
  }
  if (n <= kChunk) return sum_of_four(chunk(source, start, n));
  Four sums[4] = {four_zeros(), four_zeros(), four_zeros(), four_zeros()};
  for (int c = 0; c * kChunk < n; c++) {
    const int left = n - c * kChunk;
    sums[c] = left >= kChunk ? chunk_of<16>(source, start + c * kChunk) : chunk(source, start + c * kChunk, left);
  }
  return pair_sum(sums_of_four(sums[0], sums[1], sums[2], sums[3]));
}

// The adjacent-pair tree streams through a stack of partial sums, a binary counter of groups done, so a row
// of any length needs no memory of its own.
template <class Src>
inline float sum_of_squares(const Src& source, int64_t n) {
  constexpr int kGroup = 4 * numerics::kChunk;
  if (n <= kGroup) return group(source, 0, static_cast<int>(n));
  float stack[64];
  int depth = 0;
  for (int64_t start = 0, done = 0; start < n; start += kGroup, done++) {
    float sum = group(source, start, n - start < kGroup ? static_cast<int>(n - start) : kGroup);
    for (int64_t bits = done; bits & 1; bits >>= 1) sum = stack[--depth] + sum;
    stack[depth++] = sum;
  }
  float sum = stack[--depth];
  while (depth) sum = stack[--depth] + sum;
  return sum;
}

// --- RMSNorm ---------------------------------------------------------------------------

template <class W>
EDGE_OPS_INLINE Vec gain_at(const W* weight, int64_t i, Vec offset) {
  return weight ? load(weight + i) + offset : Vec::all(1.0f);
}
template <class W>
EDGE_OPS_INLINE Vec gain_part(const W* weight, int64_t i, int n, Vec offset) {
  return weight ? load_n(weight + i, n) + offset : Vec::all(1.0f);
}

// R rows at once, so that the weight is loaded and widened once for all of them.
template <int R, class S, class W>
EDGE_OPS_INLINE void scale(const S* x, int64_t x_stride, S* out, int64_t out_stride, const W* weight, int64_t n,
                           const float* inv, Vec offset) {
  Vec factor[R];
  for (int r = 0; r < R; r++) factor[r] = Vec::all(inv[r]);
  int64_t i = 0;
  for (; i + 32 <= n; i += 32) {
    const Vec lo = gain_at(weight, i, offset), hi = gain_at(weight, i + 16, offset);
    for (int r = 0; r < R; r++) {
      const S* from = x + r * x_stride + i;
      store2(out + r * out_stride + i, (load(from) * factor[r]) * lo, (load(from + 16) * factor[r]) * hi);
    }
  }
  for (; i < n; i += 16) {
    const int left = n - i < 16 ? static_cast<int>(n - i) : 16;
    const Vec gain = gain_part(weight, i, left, offset);
    for (int r = 0; r < R; r++) {
      store_n(out + r * out_stride + i, (load_n(x + r * x_stride + i, left) * factor[r]) * gain, left);
    }
  }
}

// Rows that are normalized together: as many as share the level-1 cache with their results.
constexpr int kRowBlock = 4;
constexpr int64_t kRowBlockBytes = 6 * 1024;

template <bool ADD, class S, class W>
void norm_rows(const NormRows& rows) {
  const S* x = static_cast<const S*>(rows.x);
  S* out = static_cast<S*>(rows.out);
  S* residual = static_cast<S*>(rows.residual);
  const W* weight = static_cast<const W*>(rows.weight);
  const Vec offset = Vec::all(rows.weight_offset);
  const float count = static_cast<float>(rows.n);
  const bool block = rows.n * static_cast<int64_t>(sizeof(S)) <= kRowBlockBytes;
  for (int64_t row = 0; row < rows.rows;) {
    const int together = block && rows.rows - row >= kRowBlock ? kRowBlock : 1;
    float inv[kRowBlock];
    for (int r = 0; r < together; r++) {
      const S* from = x + (row + r) * rows.x_stride;
      float sum;
      if constexpr (ADD) {
        sum = sum_of_squares(SumSource<S>{from, residual + (row + r) * rows.residual_stride}, rows.n);
      } else {
        sum = sum_of_squares(Source<S>{from}, rows.n);
      }
      inv[r] = inverse_rms(sum, count, rows.eps);
    }
    const S* from = ADD ? residual + row * rows.residual_stride : x + row * rows.x_stride;
    const int64_t from_stride = ADD ? rows.residual_stride : rows.x_stride;
    S* to = out + row * rows.out_stride;
    if (together == kRowBlock) {
      scale<kRowBlock>(from, from_stride, to, rows.out_stride, weight, rows.n, inv, offset);
    } else {
      scale<1>(from, from_stride, to, rows.out_stride, weight, rows.n, inv, offset);
    }
    row += together;
  }
}

// --- gated activations -----------------------------------------------------------------

EDGE_OPS_INLINE Vec constant(float value) { return Vec::all(value); }

// exp of a float32 row's value: Cody-Waite reduction, degree 6.
EDGE_OPS_INLINE Vec exponential(Vec x, float) {
  x = at_most(numerics::kExpMax, at_least(numerics::kExpMin, x));
  const Vec n = nearest(x * constant(numerics::kLog2e));
  const Vec r = (x - n * constant(numerics::kLn2Hi)) - n * constant(numerics::kLn2Lo);
  Vec p = constant(numerics::kExp0) * r + constant(numerics::kExp1);
  p = p * r + constant(numerics::kExp2);
  p = p * r + constant(numerics::kExp3);
  p = p * r + constant(numerics::kExp4);
  p = p * r + constant(numerics::kExp5);
  p = (p * (r * r) + r) + constant(1.0f);
  const Vec half = p * half_power(n);
  return half + half;
}

// exp of a 16-bit row's value: degree 4 in the fraction of x * log2(e).
template <class S>
EDGE_OPS_INLINE Vec exponential(Vec x, S) {
  x = at_most(numerics::kExpMax, at_least(numerics::kExpMin, x));
  const Vec y = x * constant(numerics::kLog2e);
  const Vec n = nearest(y);
  const Vec f = y - n;
  Vec p = constant(numerics::kPow0) * f + constant(numerics::kPow1);
  p = p * f + constant(numerics::kPow2);
  p = p * f + constant(numerics::kPow3);
  p = p * f + constant(1.0f);
  const Vec half = p * half_power(n);
  return half + half;
}

struct Silu {
  static EDGE_OPS_INLINE Vec argument(Vec g) { return g; }
};
struct GeluTanh {
  static EDGE_OPS_INLINE Vec argument(Vec g) {
    return (g * constant(numerics::kGeluScale)) * (constant(1.0f) + constant(numerics::kGeluCubic) * (g * g));
  }
};

template <class A, class S>
EDGE_OPS_INLINE Vec gated(Vec g, Vec u) {
  const Vec negated = negate(A::argument(g));
  return (g / (constant(1.0f) + exponential(negated, S{}))) * u;
}

template <class A, class S>
void gate_rows(const GateRows& rows) {
  for (int64_t row = 0; row < rows.rows; row++) {
    const S* gate = static_cast<const S*>(rows.x) + row * rows.x_stride;
    const S* up = gate + rows.d;
    S* out = static_cast<S*>(rows.out) + row * rows.out_stride;
    int64_t i = 0;
    for (; i + 32 <= rows.d; i += 32) {
      const Vec lo = gated<A, S>(load(gate + i), load(up + i));
      store2(out + i, lo, gated<A, S>(load(gate + i + 16), load(up + i + 16)));
    }
    for (; i < rows.d; i += 16) {
      const int left = rows.d - i < 16 ? static_cast<int>(rows.d - i) : 16;
      store_n(out + i, gated<A, S>(load_n(gate + i, left), load_n(up + i, left)), left);
    }
  }
}

// --- rotation --------------------------------------------------------------------------

// What happens to an element before it is rotated: nothing, or the head's RMSNorm.
template <class S>
struct Plain {
  EDGE_OPS_INLINE Vec at(const S* x, int64_t i) const { return load(x + i); }
  EDGE_OPS_INLINE Vec part(const S* x, int64_t i, int n) const { return load_n(x + i, n); }
};
template <class S, class W, bool ROUND>
struct Normed {
  const W* weight;
  Vec inv, offset;
  EDGE_OPS_INLINE Vec at(const S* x, int64_t i) const {
    const Vec y = (load(x + i) * inv) * gain_at(weight, i, offset);
    return ROUND ? round_to(y, S{}) : y;
  }
  EDGE_OPS_INLINE Vec part(const S* x, int64_t i, int n) const {
    const Vec y = (load_n(x + i, n) * inv) * gain_part(weight, i, n, offset);
    return ROUND ? round_to(y, S{}) : y;
  }
};

// One head: pairs (i, i + half), or (2 i, 2 i + 1); then what is not rotated (all of it where cos is null).
template <class S, class C, class Element>
EDGE_OPS_INLINE void rotate_head(const S* x, S* out, const Heads& heads, const C* cos, const C* sin,
                                 const Element& element) {
  const int64_t half = cos ? heads.half : 0, size = heads.head_size;
  if (!heads.interleaved) {
    for (int64_t i = 0; i < half; i += 16) {
      const int left = half - i < 16 ? static_cast<int>(half - i) : 16;
      if (left == 16) {
        const Vec a = element.at(x, i), b = element.at(x, i + half), c = load(cos + i), s = load(sin + i);
        store(out + i, a * c - b * s);
        store(out + i + half, b * c + a * s);
      } else {
        const Vec a = element.part(x, i, left), b = element.part(x, i + half, left);
        const Vec c = load_n(cos + i, left), s = load_n(sin + i, left);
        store_n(out + i, a * c - b * s, left);
        store_n(out + i + half, b * c + a * s, left);
      }
    }
  } else {
    for (int64_t i = 0; i < half; i += 16) {
      const int left = half - i < 16 ? static_cast<int>(half - i) : 16;
      const int lo_n = left < 8 ? 2 * left : 16, hi_n = 2 * left - lo_n;
      const Vec lo = lo_n == 16 ? element.at(x, 2 * i) : element.part(x, 2 * i, lo_n);
      Vec hi = Vec::zero(), a, b;
      if (hi_n) hi = hi_n == 16 ? element.at(x, 2 * i + 16) : element.part(x, 2 * i + 16, hi_n);
      split_pairs(lo, hi, a, b);
      const Vec c = left == 16 ? load(cos + i) : load_n(cos + i, left);
      const Vec s = left == 16 ? load(sin + i) : load_n(sin + i, left);
      Vec turned_lo, turned_hi;
      join_pairs(a * c - b * s, b * c + a * s, turned_lo, turned_hi);
      store_n(out + 2 * i, turned_lo, lo_n);
      if (hi_n) store_n(out + 2 * i + 16, turned_hi, hi_n);
    }
  }
  for (int64_t i = 2 * half; i < size; i += 16) {
    const int left = size - i < 16 ? static_cast<int>(size - i) : 16;
    if (left == 16) {
      store(out + i, element.at(x, i));
    } else {
      store_n(out + i, element.part(x, i, left), left);
    }
  }
}

template <class S, class C>
void rotate_heads(const Heads& heads) {
  const C* cos = static_cast<const C*>(heads.cos);
  const C* sin = static_cast<const C*>(heads.sin);
  for (int64_t h = 0; h < heads.heads; h++) {
    rotate_head(static_cast<const S*>(heads.x) + h * heads.x_stride, static_cast<S*>(heads.out) + h * heads.out_stride,
                heads, cos, sin, Plain<S>{});
  }
}

// 1 / rms of four heads that are at most one chunk long, with one division and one square root for all.
template <class S>
EDGE_OPS_INLINE void inverse_rms_of_four(const S* x, int64_t stride, const Heads& heads, float* inv) {
  const int n = static_cast<int>(heads.head_size);
  Four sums[4];
  for (int h = 0; h < 4; h++) {
    const Source<S> source{x + h * stride};
    sums[h] = n == 128  ? chunk_of<8>(source, 0)
              : n == 256 ? chunk_of<16>(source, 0)
              : n == 64  ? chunk_of<4>(source, 0)
                         : chunk(source, 0, n);
  }
  store(inv, inverse_rms(sums_of_four(sums[0], sums[1], sums[2], sums[3]), static_cast<float>(n), heads.eps));
}

template <bool ROUND, class S, class W, class C>
EDGE_OPS_INLINE void norm_rotate(const Heads& heads) {
  const S* x = static_cast<const S*>(heads.x);
  S* out = static_cast<S*>(heads.out);
  const bool small = heads.head_size > 0 && heads.head_size <= numerics::kChunk;
  for (int64_t head = 0; head < heads.heads;) {
    const int together = small && heads.heads - head >= 4 ? 4 : 1;
    float inv[4];
    if (together == 4) {
      inverse_rms_of_four(x + head * heads.x_stride, heads.x_stride, heads, inv);
    } else {
      const float sum = sum_of_squares(Source<S>{x + head * heads.x_stride}, heads.head_size);
      inv[0] = inverse_rms(sum, static_cast<float>(heads.head_size), heads.eps);
    }
    for (int h = 0; h < together; h++, head++) {
      const Normed<S, W, ROUND> element{static_cast<const W*>(heads.weight), Vec::all(inv[h]),
                                        Vec::all(heads.weight_offset)};
      rotate_head(x + head * heads.x_stride, out + head * heads.out_stride, heads, static_cast<const C*>(heads.cos),
                  static_cast<const C*>(heads.sin), element);
    }
  }
}

template <class S, class W, class C>
void norm_rotate_heads(const Heads& heads) {
  if (heads.round_normalized) {
    norm_rotate<true, S, W, C>(heads);
  } else {
    norm_rotate<false, S, W, C>(heads);
  }
}

// --- the table -------------------------------------------------------------------------

#define EDGE_OPS_ROW_TABLE(level)                                                                                     \
  {                                                                                                                   \
    level, {{norm_rows<false, float, float>, norm_rows<false, float, float>},                                        \
            {norm_rows<false, bf16, bf16>, norm_rows<false, bf16, float>},                                            \
            {norm_rows<false, f16, f16>, norm_rows<false, f16, float>}},                                              \
        {{norm_rows<true, float, float>, norm_rows<true, float, float>},                                              \
         {norm_rows<true, bf16, bf16>, norm_rows<true, bf16, float>},                                                 \
         {norm_rows<true, f16, f16>, norm_rows<true, f16, float>}},                                                   \
        {gate_rows<Silu, float>, gate_rows<Silu, bf16>, gate_rows<Silu, f16>},                                        \
        {gate_rows<GeluTanh, float>, gate_rows<GeluTanh, bf16>, gate_rows<GeluTanh, f16>},                            \
        {{rotate_heads<float, float>, rotate_heads<float, float>},                                                    \
         {rotate_heads<bf16, bf16>, rotate_heads<bf16, float>},                                                       \
         {rotate_heads<f16, f16>, rotate_heads<f16, float>}},                                                         \
        {{{norm_rotate_heads<float, float, float>, norm_rotate_heads<float, float, float>},                           \
          {norm_rotate_heads<float, float, float>, norm_rotate_heads<float, float, float>}},                          \
         {{norm_rotate_heads<bf16, bf16, bf16>, norm_rotate_heads<bf16, bf16, float>},                                \
          {norm_rotate_heads<bf16, float, bf16>, norm_rotate_heads<bf16, float, float>}},                             \
         {{norm_rotate_heads<f16, f16, f16>, norm_rotate_heads<f16, f16, float>},                                     \
          {norm_rotate_heads<f16, float, f16>, norm_rotate_heads<f16, float, float>}}},                               \
  }

// The row kernels, once, over a 16-lane Vec. Included by each ISA file inside its own anonymous namespace,
// after its Vec; defines functions with internal linkage only. docs/numerics.md fixes the order of every
// operation below: do not reorder or fuse.

#define EDGE_OPS_INLINE inline __attribute__((always_inline))

// Stores and returns what was stored, widened again.
inline Vec store_rounded(float* p, Vec x) {
  store(p, x);
  return x;
}
template <class T>
inline Vec store_rounded(T* p, Vec x) {
  store(p, x);
  return load(p);
}

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
  EDGE_OPS_INLINE Vec at(int64_t i) const { return store_rounded(residual + i, load(x + i) + load(residual + i)); }
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

// K vectors that go through the same steps side by side. Written out step by step, so that the scheduler of a
// wide core always finds K independent operations; one long chain after another leaves it short of them.
template <int K>
struct Pack {
  Vec v[K];
};
#define EDGE_OPS_EACH(expression)                                                 \
  Pack<K> result;                                                                 \
  _Pragma("GCC unroll 8") for (int k = 0; k < K; k++) result.v[k] = (expression); \
  return result
template <int K>
EDGE_OPS_INLINE Pack<K> operator+(const Pack<K>& a, const Pack<K>& b) {
  EDGE_OPS_EACH(a.v[k] + b.v[k]);
}
template <int K>
EDGE_OPS_INLINE Pack<K> operator-(const Pack<K>& a, const Pack<K>& b) {
  EDGE_OPS_EACH(a.v[k] - b.v[k]);
}
template <int K>
EDGE_OPS_INLINE Pack<K> operator*(const Pack<K>& a, const Pack<K>& b) {
  EDGE_OPS_EACH(a.v[k] * b.v[k]);
}
template <int K>
EDGE_OPS_INLINE Pack<K> operator/(const Pack<K>& a, const Pack<K>& b) {
  EDGE_OPS_EACH(a.v[k] / b.v[k]);
}
template <int K>
EDGE_OPS_INLINE Pack<K> operator+(const Pack<K>& a, Vec b) {
  EDGE_OPS_EACH(a.v[k] + b);
}
template <int K>
EDGE_OPS_INLINE Pack<K> operator*(const Pack<K>& a, Vec b) {
  EDGE_OPS_EACH(a.v[k] * b);
}
template <int K>
EDGE_OPS_INLINE Pack<K> operator-(Vec a, const Pack<K>& b) {
  EDGE_OPS_EACH(a - b.v[k]);
}
template <int K>
EDGE_OPS_INLINE Pack<K> clamp_exponent(const Pack<K>& z) {
  EDGE_OPS_EACH(clamp_exponent(z.v[k]));
}
template <int K>
struct PackPower {
  Power power[K];
  Pack<K> exponent;
};
template <int K>
EDGE_OPS_INLINE PackPower<K> nearest_power(const Pack<K>& y) {
  PackPower<K> result;
  _Pragma("GCC unroll 8") for (int k = 0; k < K; k++) {
    result.power[k] = nearest_power(y.v[k]);
    result.exponent.v[k] = result.power[k].exponent;
  }
  return result;
}
template <int K>
EDGE_OPS_INLINE Pack<K> times_power(const Pack<K>& p, const PackPower<K>& power) {
  EDGE_OPS_EACH(times_power(p.v[k], power.power[k]));
}
#undef EDGE_OPS_EACH

// exp(-z) for float32 rows: Cody-Waite reduction, degree 6. Written in z and s = -r instead of x = -z and r:
// rounding to nearest is symmetric, so every product and sum has the bits that docs/numerics.md asks for. The
// result is only ever added to 1, where all that is below 2^-25 is the same: the power may be what the ISA
// does fastest. P is a Vec or a Pack of them.
template <class P>
EDGE_OPS_INLINE P exp_of_negative(P z, float) {
  z = clamp_exponent(z);
  const auto power = nearest_power(z * constant(-numerics::kLog2e));
  const P n = power.exponent;
  const P s = (z + n * constant(numerics::kLn2Hi)) + n * constant(numerics::kLn2Lo);
  P p = constant(numerics::kExp1) - s * constant(numerics::kExp0);
  p = constant(numerics::kExp2) - p * s;
  p = constant(numerics::kExp3) - p * s;
  p = constant(numerics::kExp4) - p * s;
  p = constant(numerics::kExp5) - p * s;
  p = (p * (s * s) - s) + constant(1.0f);
  return times_power(p, power);
}

// exp(-z) for 16-bit rows: degree 4 in the fraction of -z * log2(e).
template <class P, class S>
EDGE_OPS_INLINE P exp_of_negative(P z, S) {
  z = clamp_exponent(z);
  const P y = z * constant(-numerics::kLog2e);
  const auto power = nearest_power(y);
  const P f = y - power.exponent;
  P p = f * constant(numerics::kPow0) + constant(numerics::kPow1);
  p = p * f + constant(numerics::kPow2);
  p = p * f + constant(numerics::kPow3);
  p = p * f + constant(1.0f);
  return times_power(p, power);
}

struct Silu {
  template <class P>
  static EDGE_OPS_INLINE P argument(P g) {
    return g;
  }
};
struct GeluTanh {
  template <class P>
  static EDGE_OPS_INLINE P argument(P g) {
    return (g * constant(numerics::kGeluScale)) * ((g * g) * constant(numerics::kGeluCubic) + constant(1.0f));
  }
};

template <class A, class S, class P>
EDGE_OPS_INLINE P gated(P g, P u) {
  return (g / (exp_of_negative(A::argument(g), S{}) + constant(1.0f))) * u;
}

// Elements; a wide row's two streams come from the level-2 cache, whose own prefetcher starts late on each.
constexpr int kPrefetchAhead = 128;

template <class A, class S>
void gate_rows(const GateRows& rows) {
  for (int64_t row = 0; row < rows.rows; row++) {
    const S* gate = static_cast<const S*>(rows.x) + row * rows.x_stride;
    const S* up = gate + rows.d;
    S* out = static_cast<S*>(rows.out) + row * rows.out_stride;
    int64_t i = 0;
    if constexpr (kInterleave > 1) {
      for (; i + 16 * kInterleave <= rows.d; i += 16 * kInterleave) {
        Pack<kInterleave> g, u;
        _Pragma("GCC unroll 8") for (int k = 0; k < kInterleave; k++) {
          g.v[k] = load(gate + i + 16 * k);
          u.v[k] = load(up + i + 16 * k);
          __builtin_prefetch(gate + i + 16 * k + kPrefetchAhead);  // may lie past the row: no harm
          __builtin_prefetch(up + i + 16 * k + kPrefetchAhead);
        }
        const Pack<kInterleave> y = gated<A, S>(g, u);
        _Pragma("GCC unroll 8") for (int k = 0; k < kInterleave; k += 2) {
          store2(out + i + 16 * k, y.v[k], y.v[k + 1]);
        }
      }
    }
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

// A token's factors, widened to float32 once for all of its heads: a piece of the pairs (a, b), or of the
// coordinates that are not rotated (in a only).
constexpr int kPiece = 256;
struct Factors {
  float gain_a[kPiece], gain_b[kPiece], cos[kPiece], sin[kPiece];
};

template <class T>
inline void widen_row(float* to, const T* from, int64_t n, Vec plus) {
  for (int64_t i = 0; i < n; i += 16) {
    const int left = n - i < 16 ? static_cast<int>(n - i) : 16;
    store(to + i, load_n(from + i, left) + plus);
  }
}
// Rows of a whole number of vectors may be written past n.
template <class S>
inline void widen_any(float* to, const void* from, bool wide, int64_t first, int64_t n, Vec plus) {
  if (wide) {
    widen_row(to, static_cast<const float*>(from) + first, n, plus);
  } else {
    widen_row(to, static_cast<const S*>(from) + first, n, plus);
  }
}

template <class S>
inline void gains(float* to, const Heads& heads, int64_t first, int64_t n) {
  if (heads.weight != nullptr) {
    widen_any<S>(to, heads.weight, heads.wide_weight, first, n, Vec::all(heads.weight_offset));
  } else {
    for (int64_t i = 0; i < n; i += 16) store(to + i, Vec::all(1.0f));
  }
}
// The gains of pairs (2 i, 2 i + 1), apart.
template <class S>
inline void gains_of_neighbours(Factors& f, const Heads& heads, int64_t first, int64_t n) {
  float both[2 * kPiece];
  gains<S>(both, heads, 2 * first, 2 * n);
  for (int64_t i = 0; i < n; i++) {
    f.gain_a[i] = both[2 * i];
    f.gain_b[i] = both[2 * i + 1];
  }
}

// Normalizes an element (factor: the head's 1 / rms) and rounds it where the seam says so.
template <class S, bool ROUND>
EDGE_OPS_INLINE Vec normed(Vec x, Vec factor, const float* gain) {
  const Vec y = (x * factor) * load(gain);
  return ROUND ? round_to(y, S{}) : y;
}

// What the heads of a token go through before the rotation.
enum Seam { kPlain, kNormed, kNormedRounded };

template <class S, Seam SEAM>
EDGE_OPS_INLINE void turn(Vec& a, Vec& b, Vec factor, const Factors& f, int64_t i) {
  if constexpr (SEAM != kPlain) {
    a = normed<S, SEAM == kNormedRounded>(a, factor, f.gain_a + i);
    b = normed<S, SEAM == kNormedRounded>(b, factor, f.gain_b + i);
  }
  const Vec c = load(f.cos + i), s = load(f.sin + i);
  const Vec turned_a = a * c - b * s;
  b = b * c + a * s;
  a = turned_a;
}

// n pairs of one head, `half` apart.
template <class S, Seam SEAM>
EDGE_OPS_INLINE void turn_halves(const S* x, S* out, int64_t half, int64_t n, Vec factor, const Factors& f) {
  int64_t i = 0;
  for (; i + 32 <= n; i += 32) {
    Vec a0 = load(x + i), a1 = load(x + i + 16), b0 = load(x + half + i), b1 = load(x + half + i + 16);
    turn<S, SEAM>(a0, b0, factor, f, i);
    turn<S, SEAM>(a1, b1, factor, f, i + 16);
    store2(out + i, a0, a1);
    store2(out + half + i, b0, b1);
  }
  for (; i < n; i += 16) {
    const int left = n - i < 16 ? static_cast<int>(n - i) : 16;
    Vec a = load_n(x + i, left), b = load_n(x + half + i, left);
    turn<S, SEAM>(a, b, factor, f, i);
    store_n(out + i, a, left);
    store_n(out + half + i, b, left);
  }
}

// n pairs of neighbours of one head.
template <class S, Seam SEAM>
EDGE_OPS_INLINE void turn_neighbours(const S* x, S* out, int64_t n, Vec factor, const Factors& f) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    Vec a, b, lo, hi;
    split_pairs(load(x + 2 * i), load(x + 2 * i + 16), a, b);
    turn<S, SEAM>(a, b, factor, f, i);
    join_pairs(a, b, lo, hi);
    store2(out + 2 * i, lo, hi);
  }
  if (i < n) {
    const int elements = static_cast<int>(2 * (n - i));
    const int lo_n = elements < 16 ? elements : 16, hi_n = elements - lo_n;
    const Vec x_hi = hi_n != 0 ? load_n(x + 2 * i + 16, hi_n) : Vec::zero();
    Vec a, b, lo, hi;
    split_pairs(load_n(x + 2 * i, lo_n), x_hi, a, b);
    turn<S, SEAM>(a, b, factor, f, i);
    join_pairs(a, b, lo, hi);
    store_n(out + 2 * i, lo, lo_n);
    if (hi_n != 0) store_n(out + 2 * i + 16, hi, hi_n);
  }
}

// n coordinates that are not rotated.
template <class S, Seam SEAM>
EDGE_OPS_INLINE void keep(const S* x, S* out, int64_t n, Vec factor, const Factors& f) {
  int64_t i = 0;
  for (; i + 32 <= n; i += 32) {
    Vec lo = load(x + i), hi = load(x + i + 16);
    if constexpr (SEAM != kPlain) {
      lo = normed<S, false>(lo, factor, f.gain_a + i);
      hi = normed<S, false>(hi, factor, f.gain_a + i + 16);
    }
    store2(out + i, lo, hi);
  }
  for (; i < n; i += 16) {
    const int left = n - i < 16 ? static_cast<int>(n - i) : 16;
    Vec v = load_n(x + i, left);
    if constexpr (SEAM != kPlain) v = normed<S, false>(v, factor, f.gain_a + i);
    store_n(out + i, v, left);
  }
}

// Heads whose 1 / rms is known before the pieces of a head are gone through.
constexpr int kHeadBlock = 32;

// 1 / rms of up to kHeadBlock heads; four short ones share a division and a square root.
template <class S>
inline void inverse_rms_of(const S* x, const Heads& heads, int64_t count, float* inv) {
  const int64_t n = heads.head_size;
  const float elements = static_cast<float>(n);
  int64_t h = 0;
  if (n <= numerics::kChunk) {
    for (; h + 4 <= count; h += 4) {
      Four sums[4];
      for (int i = 0; i < 4; i++) {
        const Source<S> source{x + (h + i) * heads.x_stride};
        sums[i] = n == 128   ? chunk_of<8>(source, 0)
                  : n == 256 ? chunk_of<16>(source, 0)
                  : n == 64  ? chunk_of<4>(source, 0)
                             : chunk(source, 0, static_cast<int>(n));
      }
      store(inv + h, inverse_rms(sums_of_four(sums[0], sums[1], sums[2], sums[3]), elements, heads.eps));
    }
  }
  for (; h < count; h++) {
    inv[h] = inverse_rms(sum_of_squares(Source<S>{x + h * heads.x_stride}, n), elements, heads.eps);
  }
}

template <class S, Seam SEAM>
inline void turn_heads(const Heads& heads) {
  const int64_t half = heads.cos != nullptr ? heads.half : 0;
  Factors f;
  for (int64_t first = 0; first < heads.heads; first += kHeadBlock) {
    const int64_t count = heads.heads - first < kHeadBlock ? heads.heads - first : kHeadBlock;
    const S* x = static_cast<const S*>(heads.x) + first * heads.x_stride;
    S* out = static_cast<S*>(heads.out) + first * heads.out_stride;
    float inv[kHeadBlock] = {};
    if constexpr (SEAM != kPlain) inverse_rms_of(x, heads, count, inv);
    for (int64_t at = 0; at < half; at += kPiece) {
      const int64_t n = half - at < kPiece ? half - at : kPiece;
      widen_any<S>(f.cos, heads.cos, heads.wide_cache, at, n, Vec::zero());
      widen_any<S>(f.sin, heads.sin, heads.wide_cache, at, n, Vec::zero());
      if (SEAM != kPlain && heads.interleaved) gains_of_neighbours<S>(f, heads, at, n);
      if (SEAM != kPlain && !heads.interleaved) {
        gains<S>(f.gain_a, heads, at, n);
        gains<S>(f.gain_b, heads, half + at, n);
      }
      for (int64_t h = 0; h < count; h++) {
        const S* from = x + h * heads.x_stride;
        S* to = out + h * heads.out_stride;
        if (heads.interleaved) {
          turn_neighbours<S, SEAM>(from + 2 * at, to + 2 * at, n, Vec::all(inv[h]), f);
        } else {
          turn_halves<S, SEAM>(from + at, to + at, half, n, Vec::all(inv[h]), f);
        }
      }
    }
    if (SEAM == kPlain && heads.x == heads.out) continue;  // already in place
    for (int64_t at = 2 * half; at < heads.head_size; at += kPiece) {
      const int64_t n = heads.head_size - at < kPiece ? heads.head_size - at : kPiece;
      if constexpr (SEAM != kPlain) gains<S>(f.gain_a, heads, at, n);
      for (int64_t h = 0; h < count; h++) {
        keep<S, SEAM>(x + h * heads.x_stride + at, out + h * heads.out_stride + at, n, Vec::all(inv[h]), f);
      }
    }
  }
}

template <class S>
void rotate_heads(const Heads& heads) {
  turn_heads<S, kPlain>(heads);
}

template <class S>
void norm_rotate_heads(const Heads& heads) {
  if (heads.round_normalized) {
    turn_heads<S, kNormedRounded>(heads);
  } else {
    turn_heads<S, kNormed>(heads);
  }
}

// --- the table -------------------------------------------------------------------------

#define EDGE_OPS_ROW_TABLE(level)                                                        \
  {                                                                                      \
      level,                                                                             \
      {{norm_rows<false, float, float>, norm_rows<false, float, float>},                 \
       {norm_rows<false, bf16, bf16>, norm_rows<false, bf16, float>},                    \
       {norm_rows<false, f16, f16>, norm_rows<false, f16, float>}},                      \
      {{norm_rows<true, float, float>, norm_rows<true, float, float>},                   \
       {norm_rows<true, bf16, bf16>, norm_rows<true, bf16, float>},                      \
       {norm_rows<true, f16, f16>, norm_rows<true, f16, float>}},                        \
      {gate_rows<Silu, float>, gate_rows<Silu, bf16>, gate_rows<Silu, f16>},             \
      {gate_rows<GeluTanh, float>, gate_rows<GeluTanh, bf16>, gate_rows<GeluTanh, f16>}, \
      {rotate_heads<float>, rotate_heads<bf16>, rotate_heads<f16>},                      \
      {norm_rotate_heads<float>, norm_rotate_heads<bf16>, norm_rotate_heads<f16>},       \
  }

#include <string.h>

#include <atomic>

#include "cpu.h"
#include "table.h"

namespace edge_ops {
namespace cpu {
namespace {

// Up to these many elements a fork costs more than it gains, by the sweep in benchmarks/results (`edge-ops tune`). A
// single row or token never forks.
std::atomic<int64_t> norm_grain{24576};
std::atomic<int64_t> gate_grain{8192};
std::atomic<int64_t> heads_grain{12288};

const RowTable* chosen = nullptr;
ParallelFor parallel_for = nullptr;

#if defined(__x86_64__)
// __builtin_cpu_supports asks the operating system too: AVX state that it does not save (XCR0) is not offered.
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
const RowTable* const kTables[] = {&baseline::table, &avx2::table, &avx512::table};
#else
const RowTable* const kTables[] = {&neon::table};
#endif
constexpr int kLevels = sizeof(kTables) / sizeof(kTables[0]);

int index_of(DType dtype) { return static_cast<int>(dtype); }

bool is_wide(const Tensor& t, const Tensor& rows) { return t.present() && t.dtype != rows.dtype; }

const char* at(const Tensor& t, int64_t offset) {
  return static_cast<const char*>(t.data) + offset * element_size(t.dtype);
}
char* at_mutable(const Tensor& t, int64_t offset) {
  return static_cast<char*>(t.data) + offset * element_size(t.dtype);
}

// The rows of N tensors of one leading shape, the last `inner` dimensions left out.
template <int N>
Walk<N> walk_rows(const Tensor* const (&tensors)[N], int inner) {
  Walk<N> walk;
  for (int d = 0; d < tensors[0]->rank - inner; d++) {
    int64_t strides[N];
    for (int t = 0; t < N; t++) strides[t] = tensors[t]->stride[d];
    walk.push(tensors[0]->shape[d], strides);
  }
  return walk;
}

// body(first row, rows) for each stretch of rows a constant stride apart, split over threads where it pays.
template <int N, class Body>
void for_rows(const Walk<N>& walk, int64_t elements_per_row, int64_t grain, const Body& body) {
  struct Context {
    const Walk<N>* walk;
    const Body* body;
  } context{&walk, &body};
  const auto piece = [](int64_t begin, int64_t end, void* opaque) {
    const Context& c = *static_cast<const Context*>(opaque);
    const int64_t run = c.walk->run();
    while (begin < end) {
      const int64_t left_in_run = run - begin % run;
      const int64_t rows = left_in_run < end - begin ? left_in_run : end - begin;
      (*c.body)(begin, rows);
      begin += rows;
    }
  };
  const int64_t rows_per_task = elements_per_row >= grain ? 1 : grain / (elements_per_row ? elements_per_row : 1);
  if (walk.count <= rows_per_task || walk.count == 1) {
    piece(0, walk.count, &context);
  } else {
    parallel_for(0, walk.count, rows_per_task, piece, &context);
  }
}

}  // namespace

int levels(const Level** out) {
#if defined(__x86_64__)
  static const Level kAll[] = {
      {baseline::table.name, true}, {avx2::table.name, has_avx2()}, {avx512::table.name, has_avx512()}};
#else
  static const Level kAll[] = {{neon::table.name, true}};
#endif
  *out = kAll;
  return kLevels;
}

const char* choose_level(const char* limit, ParallelFor pool) {
  const Level* all;
  const int count = levels(&all);
  int level = -1;
  for (int i = 0; i < count; i++) {
    if (limit != nullptr && strcmp(limit, all[i].name) == 0) {
      if (!all[i].offered) return "this host does not offer that level";
      level = i;
    } else if (limit == nullptr && all[i].offered) {
      level = i;
    }
  }
  if (level < 0) return "this build has no such level";
  chosen = kTables[level];
  parallel_for = pool;
  return nullptr;
}

const char* chosen_level() { return chosen->name; }

Grains grains() { return {norm_grain.load(), gate_grain.load(), heads_grain.load()}; }

void set_grains(const Grains& grains) {
  norm_grain.store(grains.norm);
  gate_grain.store(grains.gate);
  heads_grain.store(grains.heads);
}

namespace {

// Normalizes the rows of x into `out`; with a residual, adds it first and leaves the sum there.
void run_norm(const NormKernel (&kernels)[3][2], const Tensor& x, const Tensor& out, const Tensor* residual,
              const Tensor& weight, float eps, float weight_offset) {
  const NormKernel kernel = kernels[index_of(x.dtype)][is_wide(weight, x)];
  const Tensor& third = residual != nullptr ? *residual : x;
  const Tensor* const tensors[3] = {&x, &out, &third};
  const Walk<3> walk = walk_rows(tensors, 1);
  const int64_t n = x.size(1);
  if (walk.count == 0 || n == 0) return;
  for_rows(walk, n, norm_grain.load(std::memory_order_relaxed), [&](int64_t row, int64_t rows) {
    NormRows args;
    args.x = at(x, walk.offset(0, row));
    args.out = at_mutable(out, walk.offset(1, row));
    args.residual = residual != nullptr ? at_mutable(third, walk.offset(2, row)) : nullptr;
    args.weight = weight.present() ? weight.data : nullptr;
    args.n = n;
    args.rows = rows;
    args.x_stride = walk.run_stride(0);
    args.out_stride = walk.run_stride(1);
    args.residual_stride = walk.run_stride(2);
    args.eps = eps;
    args.weight_offset = weight_offset;
    kernel(args);
  });
}

}  // namespace

void run(const RmsNorm& op) { run_norm(chosen->rms_norm, op.x, op.out, nullptr, op.weight, op.eps, op.weight_offset); }

void run(const FusedAddRmsNorm& op) {
  run_norm(chosen->add_rms_norm, op.x, op.x, &op.residual, op.weight, op.eps, op.weight_offset);
}

void run(const GatedActivation& op) {
  const Tensor &x = op.x, &out = op.out;
  const GateKernel kernel = (op.gate == Gate::kSilu ? chosen->silu : chosen->gelu_tanh)[index_of(x.dtype)];
  const Tensor* const tensors[2] = {&x, &out};
  const Walk<2> walk = walk_rows(tensors, 1);
  const int64_t d = out.size(1);
  if (walk.count == 0 || d == 0) return;
  for_rows(walk, d, gate_grain.load(std::memory_order_relaxed), [&](int64_t row, int64_t rows) {
    GateRows args;
    args.x = at(x, walk.offset(0, row));
    args.out = at_mutable(out, walk.offset(1, row));
    args.d = d;
    args.rows = rows;
    args.x_stride = walk.run_stride(0);
    args.out_stride = walk.run_stride(1);
    kernel(args);
  });
}

namespace {

// Query or key as the token loop sees it.
struct Side {
  const QkRope::Heads* heads;
  HeadsKernel kernel;
  Heads args;  // all but the addresses and the angles
};

Side make_side(const QkRope& op, const QkRope::Heads& heads) {
  Side side{&heads, nullptr, {}};
  if (!heads.in.present()) return side;
  const Tensor& in = heads.in;
  side.kernel = (op.normalize ? chosen->norm_rotate : chosen->rotate)[index_of(in.dtype)];
  Heads& args = side.args;
  args.weight = heads.weight.present() ? heads.weight.data : nullptr;
  args.heads = in.size(2);
  args.head_size = in.size(1);
  args.half = op.cos_sin_cache.shape[1] / 2;
  args.x_stride = in.stride[in.rank - 2];
  args.out_stride = heads.out.stride[in.rank - 2];
  args.eps = op.eps;
  args.weight_offset = op.weight_offset;
  args.wide_weight = is_wide(heads.weight, in);
  args.wide_cache = is_wide(op.cos_sin_cache, in);
  args.interleaved = op.interleaved;
  args.round_normalized = op.round_normalized;
  return side;
}

int64_t position_at(const Tensor& positions, int64_t offset) {
  const char* address = at(positions, offset);
  if (positions.dtype == DType::kInt32) {
    int32_t value;
    memcpy(&value, address, sizeof(value));
    return value;
  }
  int64_t value;
  memcpy(&value, address, sizeof(value));
  return value;
}

}  // namespace

void run(const QkRope& op) {
  const Side sides[2] = {make_side(op, op.query), make_side(op, op.key)};
  const Tensor& first = op.query.in.present() ? op.query.in : op.key.in;
  const int leading = first.rank - 2;

  // Tensors of the walk: positions, then in and out of query and key (the other one's where one is absent).
  Walk<5> walk;
  int64_t inner_tokens[kMaxRank + 1];  // tokens below a leading dimension
  inner_tokens[leading] = 1;
  for (int d = leading - 1; d >= 0; d--) inner_tokens[d] = inner_tokens[d + 1] * first.shape[d];
  for (int d = 0; d < leading; d++) {
    int64_t strides[5];
    strides[0] = op.positions.rank == leading ? op.positions.stride[d] : op.positions.stride[0] * inner_tokens[d + 1];
    for (int s = 0; s < 2; s++) {
      const QkRope::Heads& heads = sides[s].kernel ? *sides[s].heads : *sides[1 - s].heads;
      strides[1 + 2 * s] = heads.in.stride[d];
      strides[2 + 2 * s] = heads.out.stride[d];
    }
    walk.push(first.shape[d], strides);
  }
  int64_t elements = 0;
  for (const Side& side : sides) {
    if (side.kernel) elements += side.args.heads * side.args.head_size;
  }
  if (walk.count == 0 || elements == 0) return;

  const Tensor& cache = op.cos_sin_cache;
  for_rows(walk, elements, heads_grain.load(std::memory_order_relaxed), [&](int64_t begin, int64_t tokens) {
    int64_t offset[5];
    for (int t = 0; t < 5; t++) offset[t] = walk.offset(t, begin);
    for (int64_t token = 0; token < tokens; token++) {
      const int64_t position = position_at(op.positions, offset[0]);
      const bool inside = position >= 0 && position < cache.shape[0] && cache.shape[1] > 0;
      for (int s = 0; s < 2; s++) {
        // Outside the cache nothing is rotated; without a norm nothing is left to do but stay in place.
        if (!sides[s].kernel || (!inside && !op.normalize)) continue;
        Heads args = sides[s].args;
        args.x = at(sides[s].heads->in, offset[1 + 2 * s]);
        args.out = at_mutable(sides[s].heads->out, offset[2 + 2 * s]);
        args.cos = inside ? at(cache, position * cache.stride[0]) : nullptr;
        args.sin = inside ? at(cache, position * cache.stride[0] + args.half) : nullptr;
        sides[s].kernel(args);
      }
      for (int t = 0; t < 5; t++) offset[t] += walk.run_stride(t);
    }
  });
}

}  // namespace cpu
}  // namespace edge_ops

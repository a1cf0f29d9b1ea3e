"""The ways in which mutate.py breaks the library, one at a time, and the part of the test suite that must notice.

Every mutant is a small mistake that a change could make. Where it is one of an ISA level that this machine would not
choose, the tests run at that level, as tests/process/test_levels.py runs them.
"""

from __future__ import annotations

from typing import NamedTuple, Tuple

ROWS, DISPATCH, DIRECT = "csrc/cpu/rows.inl", "csrc/cpu/dispatch.cpp", "csrc/python/direct.cpp"
BASELINE, AVX2, AVX512, NEON = (f"csrc/cpu/vec_{level}.h" for level in ("baseline", "avx2", "avx512", "neon"))
OPS, TENSOR, BINDING = "csrc/ops/ops.cpp", "csrc/ops/tensor.cpp", "torch-ext/torch_binding.cpp"
PYTORCH, EXTENT = "csrc/python/pytorch.cpp", "csrc/ops/tensor.h"
PACKAGE = "torch-ext/edge_ops"

# Arguments of pytest. "public" selects the direct route of the exact tests.
NORMS = "tests/exact/test_norms.py -k public"
GATES = "tests/exact/test_activations.py -k public"
ROTATIONS = "tests/exact/test_rotation.py tests/exact/test_fused_heads.py -k public"
FUSED = "tests/exact/test_fused_heads.py -k public"
REFUSALS = "tests/errors"
THREADS = "tests/process/test_threads.py"
MODES = "tests/framework/test_modes.py tests/framework/test_gradients.py tests/framework/test_tensor_kinds.py"
NATIVE = "tests/native"
REFERENCE = "tests/exact -k reference"


class Edit(NamedTuple):
    file: str
    old: str  # stands in the file exactly once
    new: str


class Mutant(NamedTuple):
    name: str
    edits: Tuple[Edit, ...]
    tests: str
    level: str = ""  # EDGE_OPS_CPU_ISA; empty: the highest that the machine offers
    builds: bool = True  # whether the library changes


def one(name: str, file: str, old: str, new: str, tests: str, level: str = "", builds: bool = True) -> Mutant:
    return Mutant(name, (Edit(file, old, new),), tests, level, builds)


def python(name: str, file: str, old: str, new: str, tests: str) -> Mutant:
    return one(name, f"{PACKAGE}/{file}", old, new, tests, builds=False)


_TURN = "const Vec turned_a = a * c - b * s;"
_FUSED_TURN = Mutant(
    "one multiply-add of the rotation contracted (AVX-512)",
    (
        Edit(ROWS, _TURN, "const Vec turned_a = minus_product(a * c, b, s);"),
        Edit(
            AVX512,
            "// Activations work on so many",
            "inline Vec minus_product(Vec x, Vec y, Vec z) { return {_mm512_fnmadd_ps(y.v, z.v, x.v)}; }\n"
            "// Activations work on so many",
        ),
        Edit(AVX2, "using Four", "inline Vec minus_product(Vec x, Vec y, Vec z) { return x - y * z; }\nusing Four"),
        Edit(BASELINE, "using Four", "inline Vec minus_product(Vec x, Vec y, Vec z) { return x - y * z; }\nusing Four"),
    ),
    ROTATIONS,
)

KERNELS = (
    _FUSED_TURN,
    one(
        "multiply-adds contracted by the compiler",
        "CMakeLists.txt", "-ffp-contract=off", "-ffp-contract=fast -O2", NORMS,
    ),
    one("rotation off by one part per million", ROWS,
        "const Vec c = load(f.cos + i), s", "const Vec c = load(f.cos + i) * Vec::all(1.000001f), s", ROTATIONS),
    one("rotation in the other direction", ROWS, "b = b * c + a * s;", "b = b * c - a * s;", ROTATIONS),
    one("the pair of a rotation stored swapped", ROWS,
        "store_n(out + i, a, left);\n    store_n(out + half + i, b, left);",
        "store_n(out + i, b, left);\n    store_n(out + half + i, a, left);", ROTATIONS),
    one("even and odd coordinates swapped in a tail of neighbours", ROWS,
        "split_pairs(load_n(x + 2 * i, lo_n), x_hi, a, b);", "split_pairs(load_n(x + 2 * i, lo_n), x_hi, b, a);",
        ROTATIONS),
    one("the tail of a norm's row dropped", ROWS,
        "for (; i < n; i += 16) {\n    const int left = n - i < 16 ? static_cast<int>(n - i) : 16;\n"
        "    const Vec gain",
        "for (; i + 16 <= n; i += 16) {\n    const int left = n - i < 16 ? static_cast<int>(n - i) : 16;\n"
        "    const Vec gain", NORMS),
    one("the tail of an activation's row dropped", ROWS, "for (; i < rows.d; i += 16)",
        "for (; i + 16 <= rows.d; i += 16)", GATES),
    one("a tail stored one element too long", ROWS,
        "store_n(out + i, gated<A, S>(load_n(gate + i, left), load_n(up + i, left)), left);",
        "store_n(out + i, gated<A, S>(load_n(gate + i, left), load_n(up + i, left)), left < 16 ? left + 1 : left);",
        GATES),
    one("the last head of a block of heads left as it is", ROWS,
        "kHeadBlock ? heads.heads - first : kHeadBlock;", "kHeadBlock ? heads.heads - first : kHeadBlock - 1;",
        ROTATIONS),
    one("unrotated coordinates not normalized", ROWS,
        "if constexpr (SEAM != kPlain) v = normed<S, false>(v, factor, f.gain_a + i);", "", FUSED),
    one("the seam rounded where it should not be", ROWS,
        "turn_heads<S, kNormed>(heads);", "turn_heads<S, kNormedRounded>(heads);", FUSED),
    one("the partial sums of long rows added from the other end", ROWS,
        "for (int64_t bits = done; bits & 1; bits >>= 1) sum = stack[--depth] + sum;", "(void)done;", NORMS),
    one("a chunk reduced by neighbours", ROWS, "v[j] = v[j] + v[j + width];", "v[j] = v[2 * j] + v[2 * j + 1];",
        NORMS),
    one("the four sums of a group added across", "csrc/cpu/four_x86.h",
        "const Four pairs = _mm_add_ps(x, _mm_shuffle_ps(x, x, _MM_SHUFFLE(2, 3, 0, 1)));\n"
        "  return _mm_cvtss_f32(_mm_add_ss(pairs, _mm_movehl_ps(pairs, pairs)));",
        "return sum_of_four(x);", NORMS),
    one("eps outside the root", "csrc/cpu/four_x86.h",
        "_mm_sqrt_ps(_mm_add_ps(mean, _mm_set1_ps(eps)))", "_mm_add_ps(_mm_sqrt_ps(mean), _mm_set1_ps(eps))", NORMS),
    one("an estimate in place of the root", "csrc/cpu/four_x86.h",
        "_mm_div_ps(_mm_set1_ps(1.0f), _mm_sqrt_ps(_mm_add_ps(mean, _mm_set1_ps(eps))))",
        "_mm_rsqrt_ps(_mm_add_ps(mean, _mm_set1_ps(eps)))", NORMS),
    one("the offset added without a weight", ROWS,
        "return weight ? load_n(weight + i, n) + offset : Vec::all(1.0f);",
        "return weight ? load_n(weight + i, n) + offset : Vec::all(1.0f) + offset;", NORMS),
    one("the residual's norm reads the sum before it is rounded", ROWS,
        "store(p, x);\n  return load(p);", "store(p, x);\n  return x;", NORMS, "avx2"),
    one("subnormals flushed during a norm", ROWS,
        "const Vec offset = Vec::all(rows.weight_offset);\n  const float count",
        "_mm_setcsr(_mm_getcsr() | 0x8040);\n  const Vec offset = Vec::all(rows.weight_offset);\n  const float count",
        NORMS),
    one("the last digit of a coefficient of exp", "csrc/numerics/constants.h",
        "kExp4 = 1.6666665459e-1f", "kExp4 = 1.6666667e-1f", GATES),
    one("the cut of exp's argument one lower", "csrc/numerics/constants.h",
        "kExpMax = 89.0f", "kExpMax = 88.0f", GATES),
    one("the cubic of GELU in another digit", "csrc/numerics/constants.h",
        "kGeluCubic = 0.044715f", "kGeluCubic = 0.044716f", GATES),
    one("one polynomial for all dtypes", ROWS,
        "return (g / (exp_of_negative(A::argument(g), S{}) + constant(1.0f))) * u;",
        "return (g / (exp_of_negative(A::argument(g), float{}) + constant(1.0f))) * u;", GATES),
    one("bfloat16 rounded by truncation (AVX-512)", AVX512,
        "return _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);",
        "(void)odd;\n  return bits;", NORMS),
    one("bfloat16 ties rounded up (AVX2)", AVX2,
        "_mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);",
        "_mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), _mm256_set1_epi32(1 | 0 * odd[0]));",
        NORMS, "avx2"),
    one("a NaN rounded to infinity (AVX-512)", AVX512,
        "return _mm512_mask_mov_epi32(rounded, nan, _mm512_set1_epi32(0x7fc00000));",
        "return _mm512_mask_mov_epi32(rounded, nan, _mm512_set1_epi32(0x7f800000));", NORMS),
    one("a NaN missed by the second half of a pair (AVX-512)", AVX512,
        "_mm512_cmp_ps_mask(lo.v, hi.v, _CMP_UNORD_Q)", "_mm512_cmp_ps_mask(lo.v, lo.v, _CMP_UNORD_Q)", NORMS),
    one("exp's argument not cut (AVX2)", "csrc/cpu/power_by_bits.h",
        "return at_most(-numerics::kExpMin, at_least(-numerics::kExpMax, z));",
        "return at_most(-numerics::kExpMin, z);", GATES, "avx2"),
    one("float16 subnormals read as zero (baseline)", BASELINE,
        "pick(is_tiny, tiny, normal))));", "pick(is_tiny, _mm_and_si128(tiny, _mm_setzero_si128()), normal))));",
        NORMS, "baseline"),
    one("float16 overflow seen too late (baseline)", BASELINE, "0x477fefff", "0x487fffff", NORMS, "baseline"),
    one("even and odd lanes out of order (AVX2)", AVX2,
        "_mm256_permute4x64_pd(_mm256_castps_pd(x), _MM_SHUFFLE(3, 1, 2, 0))",
        "_mm256_permute4x64_pd(_mm256_castps_pd(x), _MM_SHUFFLE(3, 2, 1, 0))", ROTATIONS, "avx2"),
    one("bfloat16 rounded by truncation (NEON)", NEON,
        "vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd);", "vaddq_u32(bits, vandq_u32(odd, vdupq_n_u32(0)));",
        NATIVE, builds=False),
    one("one multiply-add of the rotation contracted (NEON)", NEON,
        "inline Vec operator-(Vec x, Vec y) {\n  return {vsubq_f32(x.a, y.a), ",
        "inline Vec operator-(Vec x, Vec y) {\n  return {vfmsq_f32(x.a, y.a, vdupq_n_f32(1.0000001f)), ",
        NATIVE, builds=False),
    one("the smaller for the larger in a clamp (NEON)", NEON,
        "return vbslq_f32(vcltq_f32(x, m), m, x);", "return vbslq_f32(vcltq_f32(x, m), x, m);", NATIVE, builds=False),
    one("an estimate in place of the quotient (NEON)", "csrc/cpu/four_neon.h",
        "return vdivq_f32(vdupq_n_f32(1.0f), vsqrtq_f32(vaddq_f32(mean, vdupq_n_f32(eps))));",
        "return vrsqrteq_f32(vaddq_f32(mean, vdupq_n_f32(eps)));", NATIVE, builds=False),
    one("lanes added in another order (NEON)", NEON,
        "return vaddq_f32(vaddq_f32(x.a, x.c), vaddq_f32(x.b, x.d));",
        "return vaddq_f32(vaddq_f32(x.a, x.b), vaddq_f32(x.c, x.d));", NATIVE, builds=False),
)  # fmt: skip

CALLS = (
    one("one row too many in the cache's bound", DISPATCH,
        "position < cache.shape[0] &&", "position <= cache.shape[0] &&", ROTATIONS),
    one("position 0 taken for one outside", DISPATCH, "position >= 0 &&", "position > 0 &&", ROTATIONS),
    one("negative positions counted from the end", DISPATCH,
        "const int64_t position = position_at(op.positions, offset[0]);",
        "int64_t position = position_at(op.positions, offset[0]);\n"
        "      if (position < 0) position += cache.shape[0];", ROTATIONS),
    one("64-bit positions cut to 32 bits", DISPATCH,
        "int64_t value;\n  memcpy(&value, address, sizeof(value));",
        "int32_t value;\n  memcpy(&value, address, sizeof(value));",
        ROTATIONS),
    one("the stride of the input's rows ignored", DISPATCH,
        "args.x_stride = walk.run_stride(0);\n    args.out_stride = walk.run_stride(1);\n    args.residual_stride",
        "args.x_stride = n;\n    args.out_stride = walk.run_stride(1);\n    args.residual_stride", NORMS),
    one("the stride of the heads ignored", DISPATCH,
        "args.x_stride = in.stride[in.rank - 2];", "args.x_stride = args.head_size;", ROTATIONS),
    one("the stride of the cache's rows ignored", DISPATCH,
        "args.cos = inside ? at(cache, position * cache.stride[0]) : nullptr;",
        "args.cos = inside ? at(cache, position * cache.shape[1]) : nullptr;", ROTATIONS),
    one("the stride of the positions ignored", DISPATCH,
        "op.positions.stride[0] * inner_tokens[d + 1]", "inner_tokens[d + 1]", ROTATIONS),
    one("dimensions merged that do not lie one after the other", "csrc/ops/tensor.h",
        "for (int t = 0; t < N; t++) merges = merges && stride[t][rank - 1] == strides[t] * n;",
        "for (int t = 0; t < 1; t++) merges = merges && stride[t][rank - 1] == strides[t] * n;",
        "tests/exact/test_norms.py tests/exact/test_any_call.py -k public"),
    one("the last row given to no thread", DISPATCH,
        "parallel_for(0, walk.count, rows_per_task, piece, &context);",
        "parallel_for(0, walk.count - 1, rows_per_task, piece, &context);", THREADS),
    one("a thread's piece not ended where a run of rows ends", DISPATCH,
        "const int64_t rows = left_in_run < end - begin ? left_in_run : end - begin;",
        "const int64_t rows = left_in_run < end - begin ? end - begin : end - begin;", NORMS),
    one("a piece that starts inside a run taken for a whole one", DISPATCH,
        "const int64_t left_in_run = run - begin % run;", "const int64_t left_in_run = run;", THREADS),
    one("a grain that threads share not atomic", DISPATCH, "std::atomic<int64_t> gate_grain{8192};",
        "struct {\n  int64_t value;\n  int64_t load(std::memory_order) const { return value; }\n"
        "  int64_t load() const { return value; }\n  void store(int64_t other) { value = other; }\n"
        "} gate_grain{8192};", "tests/native/test_threads.py", builds=False),
    one("overlap of x and residual not asked", OPS,
        '  if (overlap(op.x, op.residual)) return "x: must not overlap residual";\n', "", REFUSALS),
    one("overlap of the result and the cache not asked", OPS,
        "if (out[s].overlaps(placed_cache))", "if (false)", REFUSALS),
    one("a result that overlaps itself accepted", OPS,
        '  if (overlaps_itself(op.out)) return "out: is written and must not overlap itself";\n', "", REFUSALS),
    one("overlap of one side's result and the other side's input not asked", OPS,
        "(out[s].overlaps(in[other]) || out[s].overlaps(out[other]))", "out[s].overlaps(out[other])", REFUSALS),
    one("the last byte left out of an extent", EXTENT, "(last + 1) * element_size", "last * element_size", REFUSALS),
    one("steps that equal what lies inside them taken for nested", TENSOR,
        "nests = nests && t.stride[d] >= inside;", "nests = nests && t.stride[d] + 1 >= inside;", REFUSALS),
    one("the last place where two boxes could meet not looked at", TENSOR,
        "for (int64_t k = first; k <= last; k++)", "for (int64_t k = first; k < last; k++)", REFUSALS),
    one("a dimension forgotten where two boxes are compared", TENSOR,
        "if (t.shape[d] == 1) continue;\n      const int64_t bytes",
        "if (t.shape[d] <= 2) continue;\n      const int64_t bytes", REFUSALS),
    one("a strided last dimension accepted", OPS,
        '  if (!last_is_contiguous(op.x)) return "x: must be contiguous in its last dimension";\n'
        "  if (op.weight", "  if (op.weight", REFUSALS),
    one("a weight of another size accepted", OPS, " && w.shape[0] == size &&", " && w.shape[0] >= size &&", REFUSALS),
    one("a cache wider than a head accepted", OPS, " || cache.shape[1] > first.size(1))", ")", REFUSALS),
    one("the default of eps off by ten, direct route", DIRECT,
        "arguments.number(2, 1e-6f, &op.eps);", "arguments.number(2, 1e-5f, &op.eps);", "tests/exact/test_defaults.py"),
    one("the default of the seam, direct route", DIRECT,
        "arguments.flag(9, true, &op.round_normalized);", "arguments.flag(9, false, &op.round_normalized);",
        "tests/exact/test_defaults.py"),
    one("bfloat16 read as float16, direct route", DIRECT,
        "case kDLBfloat << 8 | 16:\n      return DType::kBFloat16;",
        "case kDLBfloat << 8 | 16:\n      return DType::kFloat16;",
        NORMS),
    one("an argument given twice accepted", DIRECT,
        "if (slot == signature.count || slots[slot] != nullptr) return false;",
        "if (slot == signature.count) return false;", REFUSALS),
    one("gradients not asked for, direct route", DIRECT, "const bool plain = answer == Py_False;",
        "const bool plain = answer != nullptr;", MODES),
    one("a subclass taken for a plain tensor", DIRECT,
        "if (type != pytorch.tensor && type != pytorch.parameter)",
        "if (!PyType_IsSubtype(type, pytorch.tensor))", MODES),
    one("dispatch modes not asked for", PYTORCH,
        'if (is_true(pytorch.dispatch_modes, pytorch.in_dispatch_mode)) return "a dispatch mode is active";', "",
        MODES),
    one("the profiler not asked for", PYTORCH,
        'if (is_true(pytorch.profiler, pytorch.profiler_enabled)) return "the profiler is active";', "", MODES),
    one("function modes not asked for", PYTORCH, "if (answer != Py_False) reason = \"a __torch_function__",
        "if (answer == nullptr) reason = \"a __torch_function__", MODES),
    one("tracing not asked for", PYTORCH, "if (answer != Py_False) reason = \"torch.jit.trace",
        "if (answer == nullptr) reason = \"torch.jit.trace", "tests/framework"),
    one("the version of what was written not raised", DIRECT,
        "if (tensor == nullptr || tensor == Py_None) continue;", "if (tensor != nullptr) continue;", MODES),
    one("a reference to the result kept", PYTORCH,
        "Py_XINCREF(tensor);\n    Py_DECREF(tensors);",
        "Py_XINCREF(tensor);\n    Py_XINCREF(tensor);\n    Py_DECREF(tensors);",
        "tests/process/test_processes.py"),
    one("a reference to an argument kept by the fallback", DIRECT,
        "  Py_XDECREF(tuple);\n  Py_XDECREF(dict);\n  return result;", "  Py_XDECREF(dict);\n  return result;",
        "tests/process/test_processes.py"),
    one("a tensor looked at before a number is read", DIRECT,
        "arguments.number(2, 1e-6f, &op.eps);\n  arguments.number(3, 0.0f, &op.weight_offset);\n"
        "  arguments.tensor(0, &op.x);",
        "arguments.tensor(0, &op.x);\n  arguments.number(2, 1e-6f, &op.eps);\n"
        "  arguments.number(3, 0.0f, &op.weight_offset);", "tests/process/test_fuzz.py"),
    one("a mark of mutation missing", BINDING,
        'm.def("fused_add_rms_norm(Tensor(a!) x, Tensor(b!) residual,',
        'm.def("fused_add_rms_norm(Tensor(a!) x, Tensor residual,',
        "tests/framework"),
    one("the registered operator does not check", BINDING,
        "const char* problem = edge_ops::check(op);\n  require(problem == nullptr, name, problem);\n  problem =",
        "const char* problem =", REFUSALS),
)  # fmt: skip

PYTHON = (
    python("chunks of 128, reference", "reference.py", "CHUNK = 256 ", "CHUNK = 128 ", REFERENCE),
    python("the root in float32, reference", "reference.py",
           "return torch.sqrt(x.double()).to(x.dtype) if x.device.type != \"mps\" else torch.sqrt(x)",
           "return torch.sqrt(x)", "tests/exact tests/build -k reference"),
    python("one row too many in the cache's bound, reference", "reference.py",
           "(positions >= 0) & (positions < max_position)",
           "(positions >= -1) & (positions < max_position)", REFERENCE),
    python("the seam not rounded, reference", "reference.py",
           "normed = normed.to(heads.dtype).to(wide)", "normed = normed.to(wide)", REFERENCE),
    python("exp's polynomial of the other dtype, reference", "reference.py",
           "_exp(-argument, storage != torch.float32)", "_exp(-argument, False)", REFERENCE),
    python("overlap of the result not asked, Python", "checks.py",
           '        _apart("out", out, "x", x, may_be_same=True)\n        _apart("out", out, "weight", weight)\n',
           '        _apart("out", out, "weight", weight)\n', REFUSALS),
    python("the gradient of the weight without the norm", "autograd.py",
           "grad_weight = (g * normed).flatten(end_dim=-2).sum(0)",
           "grad_weight = (g * wide).flatten(end_dim=-2).sum(0)",
           "tests/framework/test_gradients.py"),
    python("the shape function of an activation", "fakes.py",
           '("silu_and_mul", x, None)\n    return x.new_empty((*x.shape[:-1], x.shape[-1] // 2))',
           '("silu_and_mul", x, None)\n    return x.new_empty(x.shape)', "tests/framework"),
    python("an older torch accepted", "native.py", "MINIMUM_TORCH = (2, 10)", "MINIMUM_TORCH = (2, 9)",
           "tests/process/test_hosts.py -k old"),
    python("a subinterpreter accepted", "interpreter.py", "_module.get_current() != _module.get_main()",
           "_module.get_current() == None", "tests/process/test_hosts.py -k subinterpreter"),
)  # fmt: skip

MUTANTS: Tuple[Mutant, ...] = (*PYTHON, *CALLS, *KERNELS)

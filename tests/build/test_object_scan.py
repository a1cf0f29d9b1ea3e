"""tools/object_scan.py finds what it is there to find: one planted fault for each of its rules."""

import importlib.util
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from support.processes import ROOT

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or not (shutil.which("g++") and shutil.which("objdump")),
    reason="scans x86-64 code with g++ and binutils",
)

_spec = importlib.util.spec_from_file_location("object_scan", ROOT / "tools" / "object_scan.py")
object_scan = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(object_scan)

FLAGS = ("-O2", "-std=c++17", "-fPIC", "-ffp-contract=off", "-fno-gnu-unique")
AVX2 = '#pragma GCC target("avx2,fma,f16c")\n'
AVX512 = '#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl")\n'


def in_isa(isa, body, inner="namespace { "):
    close = "} " if inner else ""
    return f"namespace edge_ops {{ namespace {isa} {{ {inner}{body} {close}}} }}\n"


@pytest.fixture
def compile_object(tmp_path):
    def build(source, name="sample.o", flags=FLAGS):
        path = tmp_path / "source.cpp"
        path.write_text(source)
        subprocess.run(["g++", *flags, "-c", str(path), "-o", str(tmp_path / name)], check=True)
        return tmp_path / name

    return build


@pytest.fixture
def link(tmp_path):
    def build(objects, name="sample.so", *flags):
        subprocess.run(["g++", "-shared", *map(str, objects), "-o", str(tmp_path / name), *flags], check=True)
        return tmp_path / name

    return build


CLEAN = AVX2 + in_isa(
    "avx2", "void scale(float* x, int n) { for (int i = 0; i < n; i++) x[i] = x[i] * 2.0f + 1.0f; }"
) + in_isa("avx2", "extern void (*const table)(float*, int); void (*const table)(float*, int) = scale;", "")  # fmt: skip


def test_clean_code_passes(compile_object, link):
    isa = compile_object(CLEAN, "isa_avx2.o", ("-O3", *FLAGS))
    assert any("VEX" in f.levels and f.isa == "avx2" for f in object_scan.functions(isa))
    assert object_scan.scan(isa) == []
    assert object_scan.scan(link([isa])) == []


def test_code_above_the_baseline_outside_its_namespace(compile_object):
    leak = "namespace edge_ops { void scale(float* x) { for (int i = 0; i < 64; i++) x[i] *= 2.0f; } }"
    (problem,) = object_scan.scan(compile_object(AVX2 + leak, flags=("-O3", *FLAGS)))
    assert "_ZN8edge_ops5scaleEPf is above the baseline (VEX) outside an ISA's namespace" in problem


@pytest.mark.parametrize(
    ("flag", "body", "level"),
    [
        ("-msse3", "__m128 f(__m128 a) { return _mm_hadd_ps(a, a); }", "SSE4"),
        ("-mssse3", "__m128i f(__m128i a) { return _mm_shuffle_epi8(a, a); }", "SSE4"),
        ("-msse4.1", "__m128 f(__m128 a) { return _mm_round_ps(a, 0); }", "SSE4"),
        ("-mpopcnt", "int f(unsigned a) { return __builtin_popcount(a); }", "SSE4"),
        ("-mbmi2", "unsigned long f(unsigned long a, unsigned long b) { return _pdep_u64(a, b); }", "BMI"),
        ("-mlzcnt", "int f(unsigned a) { return _lzcnt_u32(a); }", "BMI"),
        ("-mavx", "__m128 f(__m128 a) { return _mm_add_ps(a, a); }", "VEX"),
        ("-mf16c", "float f(unsigned short a) { return _cvtsh_ss(a); }", "VEX"),
        ("-mavx512f", "__m512 f(__m512 a) { return _mm512_add_ps(a, a); }", "EVEX"),
        ("-maes", "__m128i f(__m128i a) { return _mm_aesenc_si128(a, a); }", "other"),
    ],
    ids=lambda value: value if value.startswith("-m") else "",
)
def test_every_kind_of_instruction_above_the_baseline(compile_object, flag, body, level):
    path = compile_object(f"#include <immintrin.h>\n{body}", flags=(*FLAGS, flag))
    (problem,) = object_scan.scan(path)
    assert level in problem and "outside an ISA's namespace" in problem


def test_an_isa_beyond_itself(compile_object):
    # AVX-512 in AVX2's functions, BMI (which nobody asked the processor for) in AVX-512's, SSE4 in the baseline's
    for isa, target, body in (
        ("avx2", AVX512, "__m512 f(__m512 a) { return _mm512_add_ps(a, a); }"),
        (
            "avx512",
            '#pragma GCC target("avx512f,bmi2")\n',
            "unsigned long f(unsigned long a) { return _pext_u64(a, a); }",
        ),
        ("baseline", '#pragma GCC target("sse4.1")\n', "__m128 f(__m128 a) { return _mm_round_ps(a, 0); }"),
    ):
        path = compile_object("#include <immintrin.h>\n" + target + in_isa(isa, body, ""), f"isa_{isa}.o")
        (problem,) = object_scan.scan(path)
        assert f"is beyond its ISA, {isa}" in problem


def test_a_weak_symbol_with_vex_code(compile_object):
    # a template outside the anonymous namespace: the linker keeps one copy for the whole library
    body = "template <class T> T twice(T* x) { for (int i = 0; i < 64; i++) x[i] *= 2; return x[0]; }"
    source = AVX2 + in_isa("avx2", body, "") + in_isa("avx2", "float use(float* x) { return twice(x); }", "")
    problems = object_scan.scan(compile_object(source, "isa_avx2.o", ("-O3", "-fno-inline", *FLAGS)))
    assert any("twice" in p and "is weak and holds VEX code" in p for p in problems), problems


def test_the_leak_that_link_order_decides(compile_object, link):
    # the real danger: one inline function, compiled for AVX2 here and for everyone there
    inline = "inline float total(float* x) { float s = 0; for (int i = 0; i < 64; i++) s += x[i]; return s; }"
    isa = compile_object(
        AVX2 + inline + in_isa("avx2", "float a(float* x) { return total(x); }", ""),
        "isa_avx2.o", ("-O3", "-fno-inline", *FLAGS),
    )  # fmt: skip
    everyone = compile_object(inline + "float b(float* x) { return total(x); }", "b.o", ("-O3", "-fno-inline", *FLAGS))
    assert object_scan.scan(everyone) == []
    library = link([isa, everyone])
    assert any("total" in p and "outside an ISA's namespace" in p for p in object_scan.scan(library))
    assert any("total" in p and "weak" in p for p in object_scan.scan(isa))


@pytest.mark.parametrize(("isa", "target"), (("avx2", AVX2), ("avx512", AVX512)))
def test_a_fused_multiply_add(compile_object, link, isa, target):
    body = "void axpy(float* x, int n) { for (int i = 0; i < n; i++) x[i] = x[i] * 2.0f + 1.0f; }"
    flags = [f for f in FLAGS if "contract" not in f] + ["-ffp-contract=fast"]
    path = compile_object(target + in_isa(isa, body, ""), f"isa_{isa}.o", flags)
    for file in (path, link([path])):  # in the object, and again where it ends up
        assert any("has a fused multiply-add (vfmadd" in p for p in object_scan.scan(file))


def test_a_static_initialiser(compile_object):
    body = "float start(); float table[2] = {start(), 1.0f};"
    path = compile_object(AVX2 + in_isa("avx2", body, ""), "isa_avx2.o")
    assert any("a static initialiser (.init_array)" in p for p in object_scan.scan(path))


def test_torch_outside_the_stable_abi(compile_object, link):
    source = "namespace c10 { void warn(int); }\nnamespace at { struct Tensor { long numel() const; }; }\n"
    source += "void f(at::Tensor& t) { c10::warn(int(t.numel())); }"
    problems = object_scan.scan(link([compile_object(source)]))
    assert len(problems) == 2 and all("outside torch's stable ABI" in p for p in problems)


def test_another_dependency_and_a_search_path(compile_object, link):
    other = link([compile_object("void g() {}", "g.o")], "libother.so")
    user = compile_object("void g(); void f() { g(); }", "f.o")
    problems = object_scan.scan(link([user], "user.so", str(other), "-Wl,-rpath,/somewhere", "-Wl,-soname,user.so"))
    assert any("depends on" in p and "libother.so" in p for p in problems)
    assert any("has a search path, /somewhere" in p for p in problems)


def test_a_stripped_library_is_not_called_clean(compile_object, link):
    library = link([compile_object(CLEAN, "isa_avx2.o")], "stripped.so", "-s")
    with pytest.raises(SystemExit, match="no symbols to scan"):
        object_scan.scan(library)


def test_the_command(compile_object):
    clean = compile_object(CLEAN, "isa_avx2.o")
    tool = str(ROOT / "tools" / "object_scan.py")
    done = subprocess.run(["python3", tool, str(clean)], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout == "1 files keep the rules\n"
    leak = compile_object(AVX2 + "float f(float a) { return a + 1.0f; }", "leak.o")
    done = subprocess.run(["python3", tool, str(clean), str(leak)], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "leak.o" in done.stdout and Path(leak).name in done.stdout

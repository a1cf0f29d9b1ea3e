"""What lies in the built layout: files, identities, digests, and the checks that would notice."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from support.processes import ROOT, output

build_hub = pytest.importorskip("build_hub", reason="needs Python 3.11's tomllib")
hub_checks = pytest.importorskip("hub_checks")


def test_every_variant_passes_every_check(layout):
    found = [hub_checks.examine(folder) for folder in sorted((layout / "build").iterdir())]
    assert {one.variant for one in found} >= {f"torch-{backend}" for backend in build_hub.NOARCH_BACKENDS}
    assert any(one.variant.startswith("torch-stable-abi210-cpu-") for one in found)
    assert {one.variant: one.problems for one in found if one.problems} == {}
    identities = [one.id for one in found]
    assert len(set(identities)) == len(identities)


def test_the_library_stays_small(native_variant):
    found = hub_checks.examine(native_variant)
    assert 0 < found.size < 2 * 2**20
    assert found.shims > 0, "the check saw no call into torch"


def test_kernels_reads_the_metadata(layout):
    rust = pytest.importorskip("kernels._rust")
    for folder in (layout / "build").iterdir():
        metadata = rust.Metadata.read_from_file(folder / "metadata.json")
        assert str(metadata.name) == "edge-ops" and metadata.version == build_hub.GENERAL["version"]
        assert metadata.id.startswith(f"_edge_ops_{str(metadata.backend.backend_type).lower()}_")
        metadata.digest.validate(rust.Digest.hash_variant(rust.DigestAlgorithm.SHA256, folder))
        assert metadata.provenance is not None


def test_a_changed_file_is_noticed(native_variant, tmp_path):
    copy = tmp_path / native_variant.name
    shutil.copytree(native_variant, copy)
    (copy / "rope.py").write_text((copy / "rope.py").read_text() + "\n")
    (copy / "extra.py").write_text("")
    (copy / "layers.py").unlink()
    (copy / "other.so").write_bytes(next(copy.glob("*.so")).read_bytes())
    problems = "\n".join(hub_checks.examine(copy).problems)
    for expected in ("rope.py is not what", "extra.py is not what", "layers.py is recorded and missing", "should hold"):
        assert expected in problems


@pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")
def test_a_library_that_would_not_load_everywhere_is_noticed(tmp_path):
    source, library = tmp_path / "bad.cpp", tmp_path / "bad.so"
    source.write_text(
        "#include <sstream>\n#include <cmath>\n"
        "namespace at { struct Tensor { long numel() const; }; }\n"
        'extern "C" int PyUnstable_Nothing(void); extern "C" void* PyType_GetName(void*);\n'
        "long f(at::Tensor& t, double x) { std::ostringstream s; s << std::exp2(x); PyType_GetName(&s);\n"
        "  return t.numel() + long(s.str().size()); }\n"
    )
    subprocess.run(["g++", "-shared", "-fPIC", "-O2", str(source), "-o", str(library), "-lz"], check=False)
    if not library.is_file():  # no zlib to link with: the other faults remain
        subprocess.run(["g++", "-shared", "-fPIC", "-O2", str(source), "-o", str(library)], check=True)
    problems = "\n".join(hub_checks.library_problems(library))
    assert "manylinux_2_28: " in problems and "abi3 3.9: " in problems
    assert "outside torch's stable ABI" in problems


def test_equal_content_gives_equal_bytes_and_one_identity(tmp_path):
    first = build_hub.build_all(build_hub.variants("noarch", None, None), tmp_path / "a", tmp_path, 1)
    second = build_hub.build_all(build_hub.variants("noarch", None, None), tmp_path / "b", tmp_path, 1)
    for one, other in zip(first, second):
        assert one.name == other.name
        files = sorted(str(path.relative_to(one)) for path in one.rglob("*") if path.is_file())
        assert files == sorted(str(path.relative_to(other)) for path in other.rglob("*") if path.is_file())
        assert all((one / name).read_bytes() == (other / name).read_bytes() for name in files)


@pytest.mark.parametrize("changed", ("torch-ext/edge_ops/rope.py", "csrc/cpu/rows.inl", "CMakeLists.txt"))
def test_other_content_gives_another_identity(monkeypatch, tmp_path, changed):
    before = build_hub.identity("cpu", native=True), build_hub.identity("cpu", native=False)
    assert build_hub.identity("cpu", "another compiler", native=True) != before[0]
    for path in (*build_hub.package_files(), *build_hub.native_files()):
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    monkeypatch.setattr(build_hub, "PACKAGE", tmp_path / build_hub.PACKAGE.relative_to(ROOT))
    monkeypatch.setattr(build_hub, "ROOT", tmp_path)
    assert (build_hub.identity("cpu", native=True), build_hub.identity("cpu", native=False)) == before
    with (tmp_path / changed).open("a") as file:
        file.write("\n")
    after = build_hub.identity("cpu", native=True), build_hub.identity("cpu", native=False)
    assert after[0] != before[0] and (after[1] != before[1]) == changed.startswith("torch-ext")


def test_architectures_in_both_words():
    assert build_hub.capabilities("80-real;87-real;100-real;120") == ["10.0", "12.0+PTX", "8.0", "8.7"]
    assert build_hub.capabilities(build_hub._cmake_architectures()) == sorted(
        build_hub.CONFIGURATION["kernel"]["edge_ops_cuda"]["cuda-capabilities"]
    )


def test_what_cannot_be_built_is_said(tmp_path):
    with pytest.raises(SystemExit, match="--torch-aarch64: must name the torch folder"):
        build_hub.variants("cpu-aarch64", tmp_path, None)


# --- the card ----------------------------------------------------------------------------


def test_the_card_is_filled(layout):
    card = (layout / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: kernels\nlicense: apache-2.0\n")
    assert "{{" not in card and "{%" not in card
    for name in ("`rms_norm`", "`fused_qk_norm_rope`", "`RMSNormZeroCentered`", "kernels benchmark edge-ops/edge-ops"):
        assert name in card


def test_the_cards_programs_run(layout, cache):
    pytest.importorskip("kernels")
    pytest.importorskip("transformers")
    card = (layout / "README.md").read_text()
    blocks = [part.split("\n```", 1)[0] for part in card.split("```python\n")[1:]]
    assert len(blocks) == 3
    program = blocks[0] + "\nfrom models.tiny import tiny\nmodel = tiny('qwen3')\n" + "\n".join(blocks[1:])
    program += "\nprint('ran')\n"
    environment = {"KERNELS_CACHE": str(cache), "HF_HUB_OFFLINE": "1", "LOCAL_KERNELS": "nobody/nothing=/nowhere"}
    out = output(["-c", program], environment)
    assert out.strip().endswith("ran")


def test_the_hubs_benchmark_runs(layout, tmp_path):
    pytest.importorskip("kernels.benchmark")
    pytest.importorskip("tabulate")
    record = tmp_path / "record.json"
    arguments = ["benchmark", str(layout), "--iterations", "3", "--warmup", "1", "--output", str(record)]
    output(["-c", f"import sys; sys.argv[1:] = {arguments!r}\nfrom kernels.cli import main; main()"])
    results = json.loads(record.read_text())["results"]
    assert len(results) == 10 and all(result["verified"] for result in results)

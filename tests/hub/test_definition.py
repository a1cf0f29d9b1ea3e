"""build.toml and the shipped package keep the Kernel Hub's rules, and say what CMakeLists.txt builds."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch

from edge_ops import native
from support.processes import ROOT

build_hub = pytest.importorskip("build_hub", reason="needs Python 3.11's tomllib")
PACKAGE = ROOT / "torch-ext" / "edge_ops"
CMAKE = (ROOT / "CMakeLists.txt").read_text()
MODULES = [path for path in build_hub.package_files() if path.suffix == ".py"]


def listed(*kernels):
    found = list(build_hub.CONFIGURATION["torch"]["src"]) if "torch" in kernels else []
    for name in kernels:
        found += build_hub.CONFIGURATION["kernel"].get(name, {}).get("src", [])
    return found


def test_the_definition_is_valid():
    rust = pytest.importorskip("kernels._rust")
    build = rust.Build.open(ROOT)
    assert {str(backend).lower() for backend in build.general.backends} == {"cpu", "cuda"}


def test_a_wrong_definition_is_refused(tmp_path):
    rust = pytest.importorskip("kernels._rust")
    (tmp_path / "build.toml").write_text((ROOT / "build.toml").read_text().replace("edition = 5", "edition = 6"))
    with pytest.raises(ValueError, match="edition"):
        rust.Build.open(tmp_path)


def test_the_sources_are_those_of_the_wheel():
    compiled = re.search(r"set\(SOURCES\n(.*?)\)", CMAKE, re.DOTALL)[1].split()
    assert sorted(f for f in listed("torch") if f.endswith(".cpp")) == sorted(compiled)
    kernels = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "csrc" / "cuda").glob("*.cu"))]
    assert [f for f in listed("edge_ops_cuda") if f.endswith(".cu")] == kernels
    assert len(listed("torch", "edge_ops_cuda")) == len(set(listed("torch", "edge_ops_cuda")))


def test_no_header_is_forgotten():
    kinds = (".cpp", ".cu", ".cuh", ".h", ".inl")
    files = [path for folder in ("csrc", "torch-ext") for path in (ROOT / folder).rglob("*") if path.suffix in kinds]
    names = {str(path.relative_to(ROOT)) for path in files}
    # the Hub builds on an old glibc, which needs no wrapping of new ones
    assert set(listed("torch", "edge_ops_cuda")) == names - {"torch-ext/old_glibc.cpp"}


def test_flags_and_versions_are_those_of_the_wheel():
    torch_section = build_hub.CONFIGURATION["torch"]
    assert set(torch_section["cxx-flags"]) <= set(CMAKE.replace("$<$<COMPILE_LANGUAGE:CXX>:", "").split())
    cuda = build_hub.CONFIGURATION["kernel"]["edge_ops_cuda"]
    assert all(flag in CMAKE for flag in cuda["cuda-flags"])
    architectures = re.search(r"set\(CMAKE_CUDA_ARCHITECTURES (.*)\)", CMAKE)[1].split()
    assert build_hub.capabilities(";".join(architectures)) == sorted(cuda["cuda-capabilities"])
    major, minor = native.MINIMUM_TORCH
    assert set(torch_section["stable-abi"].values()) == {f"{major}.{minor}"}
    assert f"TORCH_TARGET_VERSION=0x{major:02x}{minor:02x}000000000000ULL" in CMAKE


@pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")
@pytest.mark.parametrize("standard", (17, 20), ids="c++{}".format)
def test_the_listed_files_compile_as_the_hub_compiles_them(tmp_path, standard):
    """kernel-builder's definitions and flags, on a copy of the listed files alone: C++ 17 for older torches."""
    for name in listed("torch"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, tmp_path / name)
    headers = [Path(torch.__file__).parent / "include", Path(sysconfig.get_path("include"))]
    command = ["g++", f"-std=gnu++{standard}", "-fsyntax-only", "-fPIC", *build_hub.CONFIGURATION["torch"]["cxx-flags"]]
    command += ["-DPy_LIMITED_API=0x03000000", "-DTORCH_EXTENSION_NAME=_edge_ops_cpu_0000000", "-DCPU_KERNEL"]
    command += ["-DTORCH_TARGET_VERSION=0x20a000000000000", *(f"-isystem{path}" for path in headers)]
    for name in listed("torch"):
        if name.endswith(".cpp"):
            done = subprocess.run([*command, name], cwd=tmp_path, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{name}\n{done.stderr[-3000:]}"


# --- the package -----------------------------------------------------------------------


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_keeps_the_hubs_rules(path):
    tree = ast.parse(path.read_text(), feature_version=(3, 9))
    inside_functions = {
        id(node) for outer in ast.walk(tree) if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef))
        for node in ast.walk(outer)
    }  # fmt: skip
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module]
        for name in (name.split(".")[0] for name in names):
            assert name != "edge_ops", f"line {node.lineno}: the package imports itself by relative imports"
            if id(node) not in inside_functions and not under_type_checking(tree, node):
                assert name == "torch" or name in sys.stdlib_module_names, f"line {node.lineno}: imports {name}"


def under_type_checking(tree, node):
    blocks = [b for b in ast.walk(tree) if isinstance(b, ast.If) and ast.unparse(b.test).endswith("TYPE_CHECKING")]
    return any(node in ast.walk(statement) for block in blocks for statement in block.body)


def test_registrations_carry_the_builds_namespace():
    found = 0
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("torch.library."):
                found += 1
                assert ast.unparse(node.args[0]).startswith("add_op_namespace_prefix("), f"{path}: line {node.lineno}"
    assert found >= 13, "the search found no registrations"


def test_the_exports_are_literal_and_there():
    hub_card = pytest.importorskip("hub_card")
    import edge_ops

    names = hub_card.exported(PACKAGE / "__init__.py")
    assert names == edge_ops.__all__ and "layers" in names
    assert all(hasattr(edge_ops, name) for name in names)
    assert not (PACKAGE / PACKAGE.name).exists(), "older loaders look for the package there"

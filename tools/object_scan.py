"""Looks at every function of the native objects for instructions and symbols that must not be there.

    python tools/object_scan.py library.abi3.so ...     the finished library
    python tools/object_scan.py isa_avx2.o ...          an object of one ISA level

The rules (docs/architecture.md says why):

- a function above the x86-64 baseline lies in its ISA's namespace, and stays within that ISA;
- no weak or unique symbol holds VEX or EVEX code: the linker may make it everybody's copy;
- no fused multiply-add in code of an ISA level: it rounds once where the contract rounds twice;
- no static initialiser in an ISA object: it would run on every host, at import;
- a library needs nothing of torch's C++ outside the stable ABI, depends on nothing but libc, libm, libstdc++,
  libgcc_s and libtorch, and carries no search path.

Uses objdump and nm. Exits with 1 and a line for each violation where a rule is broken.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Set, Tuple

# Mnemonics above SSE2 that are not VEX- or EVEX-encoded. tzcnt is left out: compilers emit it on purpose for
# any x86-64, where an older processor runs it as bsf.
_SSE3 = "addsubpd addsubps haddpd haddps hsubpd hsubps lddqu movddup movshdup movsldup fisttp monitor mwait"
_SSSE3 = (
    "pshufb phaddw phaddd phaddsw phsubw phsubd phsubsw pmaddubsw pmulhrsw psignb psignw psignd pabsb pabsw pabsd "
    "palignr"
)
_SSE4 = (
    "blendpd blendps blendvpd blendvps pblendvb pblendw dppd dpps extractps insertps mpsadbw movntdqa packusdw pextrb "
    "pextrd pextrq pinsrb pinsrd pinsrq pmaxsb pmaxsd pmaxud pmaxuw pminsb pminsd pminud pminuw pmovsxbw pmovsxbd "
    "pmovsxbq pmovsxwd pmovsxwq pmovsxdq pmovzxbw pmovzxbd pmovzxbq pmovzxwd pmovzxwq pmovzxdq pmuldq pmulld ptest "
    "roundpd roundps roundsd roundss phminposuw pcmpeqq pcmpgtq pcmpestri pcmpestrm pcmpistri pcmpistrm crc32 popcnt"
)
_BMI = "andn bextr blsi blsmsk blsr bzhi mulx pdep pext rorx sarx shlx shrx lzcnt movbe adcx adox"
_OTHER = (
    "aesenc aesenclast aesdec aesdeclast aesimc aeskeygenassist pclmulqdq sha1rnds4 sha1nexte sha1msg1 sha1msg2 "
    "sha256rnds2 sha256msg1 sha256msg2 rdrand rdseed cmpxchg16b"
)
_LEVEL_OF: Dict[str, str] = {}
for _level, _names in (("SSE4", f"{_SSE3} {_SSSE3} {_SSE4}"), ("BMI", _BMI), ("other", _OTHER)):
    for _name in _names.split():
        _LEVEL_OF[_name] = _level

# What each ISA's own functions may use; the target pragmas of csrc/cpu/isa_*.cpp say the same.
_ALLOWED = {"baseline": set(), "avx2": {"SSE4", "VEX"}, "avx512": {"SSE4", "VEX", "EVEX"}}

_FUSED = re.compile(r"^(vfn?m(add|sub)|vfmaddsub|vfmsubadd|v4fn?madd|fn?m(add|sub)$|fml[as])")
_NAMESPACE = re.compile(r"^_ZZ*N[KVRO]*8edge_ops(?:8(baseline)|4(avx2)|6(avx512)|4(neon))")
_ISA_OBJECT = re.compile(r"isa_(baseline|avx2|avx512|neon)")
_PREFIXES = {"2e", "36", "3e", "26", "64", "65", "67"}

_LIBRARIES = re.compile(
    r"^(libc\.so\.6|libm\.so\.6|libstdc\+\+\.so\.6|libgcc_s\.so\.1|ld-linux-[\w-]+\.so\.\d|libtorch\w*\.so|libc10\w*\.so)$"
)
_TORCH_CPP = re.compile(r"\b(c10|at|torch|caffe2)::(?!stable::)")


class Symbol(NamedTuple):
    name: str
    weak: bool


class Function(NamedTuple):
    symbol: Symbol
    levels: Set[str]  # above the baseline
    fused: List[str]  # fused multiply-adds

    @property
    def isa(self) -> str:
        """The ISA's namespace that it lies in, or "" outside them."""
        match = _NAMESPACE.match(self.symbol.name)
        return next(filter(None, match.groups())) if match else ""


def _run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _symbols(path: Path) -> Dict[Tuple[str, int], List[Symbol]]:
    """(section, address) -> the symbols there that are not sections or files."""
    found: Dict[Tuple[str, int], List[Symbol]] = {}
    # "0000000000001139 g     F .text\t000000000000000b .hidden name": address, seven columns of flags, section
    line = re.compile(r"^([0-9a-f]+) (.{7}) (\S+)\t[0-9a-f]+\s+(?:\.(?:hidden|protected|internal) )?(\S+)$")
    for text in _run("objdump", "-t", str(path)).splitlines():
        match = line.match(text)
        if match and match[2][5] != "d" and match[3] != "*UND*":
            symbol = Symbol(match[4], match[2][1] == "w" or match[2][0] == "u")
            found.setdefault((match[3], int(match[1], 16)), []).append(symbol)
    return found


def _encoding(code: List[str], mnemonic: str) -> str:
    """The level of one instruction above the baseline, or ""."""
    while code and code[0] in _PREFIXES:
        code = code[1:]
    name = mnemonic.rstrip("lqwb") if mnemonic.rstrip("lqwb") in _LEVEL_OF else mnemonic
    if name in _LEVEL_OF and _LEVEL_OF[name] == "BMI":
        return "BMI"
    if code[:1] == ["62"]:
        return "EVEX"
    if code[:1] in (["c4"], ["c5"]):
        # mask instructions (kmov, kortest, ...) are VEX-encoded and AVX-512 all the same
        return "EVEX" if re.match(r"^k[a-z]", mnemonic) else "VEX"
    return _LEVEL_OF.get(name, "")


def functions(path: Path) -> Iterator[Function]:
    """Every function of an object or a library, by address: local names repeat between the ISAs."""
    symbols = _symbols(path)
    if not symbols:
        raise SystemExit(f"{path}: no symbols to scan (stripped?)")
    section, current = "", None
    heading = re.compile(r"^([0-9a-f]+) <(.*)>:$")
    for line in _run("objdump", "-d", "-w", str(path)).splitlines():
        if line.startswith("Disassembly of section "):
            section = line[len("Disassembly of section ") : -1]
            continue
        match = heading.match(line)
        if match:
            if current is not None:
                yield current
            here = symbols.get((section, int(match[1], 16)), [])
            # of several names for one address the strictest view counts: weak where any is
            symbol = Symbol(match[2] if not here else here[0].name, any(s.weak for s in here))
            current = Function(symbol, set(), [])
            continue
        parts = line.split("\t")
        if current is None or len(parts) < 3 or not parts[2].strip():
            continue
        words = parts[2].split()
        while words and words[0] in ("rep", "repz", "repnz", "lock", "bnd", "notrack", "data16", "cs", "ds"):
            words.pop(0)
        if not words:
            continue
        level = _encoding(parts[1].split(), words[0])
        if level:
            current.levels.add(level)
        if _FUSED.match(words[0]):
            current.fused.append(words[0])
    if current is not None:
        yield current


def _initialisers(path: Path) -> List[str]:
    found = []
    for line in _run("objdump", "-h", str(path)).splitlines():
        fields = line.split()
        if len(fields) > 2 and re.match(r"^\.(init_array|preinit_array|ctors)", fields[1]) and int(fields[2], 16):
            found.append(fields[1])
    return found


def scan_functions(path: Path) -> List[str]:
    """Violations of the rules about code, in an object or a library."""
    own = _ISA_OBJECT.search(path.name)
    problems = []
    for function in functions(path):
        name, isa = function.symbol.name, function.isa
        above = ", ".join(sorted(function.levels))
        if function.levels and not isa:
            problems.append(f"{path.name}: {name} is above the baseline ({above}) outside an ISA's namespace")
        elif isa in _ALLOWED and function.levels - _ALLOWED[isa]:
            beyond = ", ".join(sorted(function.levels - _ALLOWED[isa]))
            problems.append(f"{path.name}: {name} is beyond its ISA, {isa} ({beyond})")
        if function.symbol.weak and function.levels & {"VEX", "EVEX"}:
            problems.append(f"{path.name}: {name} is weak and holds {above} code")
        if function.fused and (isa or own):
            problems.append(f"{path.name}: {name} has a fused multiply-add ({function.fused[0]})")
    if own:
        problems += [f"{path.name}: a static initialiser ({section})" for section in _initialisers(path)]
    return problems


def scan_linkage(path: Path) -> List[str]:
    """Violations of the rules about what a library needs of others."""
    problems = []
    for line in _run("objdump", "-p", str(path)).splitlines():
        fields = line.split()
        if fields[:1] == ["NEEDED"] and not _LIBRARIES.match(fields[1]):
            problems.append(f"{path.name}: depends on {fields[1]}")
        if fields[:1] in (["RPATH"], ["RUNPATH"]):
            problems.append(f"{path.name}: has a search path, {fields[1]}")
    for line in _run("nm", "-D", "-C", "--undefined-only", str(path)).splitlines():
        name = line.strip().split(" ", 1)[-1]
        if _TORCH_CPP.search(name):
            problems.append(f"{path.name}: needs {name}, which is outside torch's stable ABI")
    return problems


def scan(path: Path) -> List[str]:
    return scan_functions(path) + (scan_linkage(path) if ".so" in path.suffixes or path.name.endswith(".so") else [])


def main() -> None:
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    problems = [problem for path in sys.argv[1:] for problem in scan(Path(path))]
    print("\n".join(problems) or f"{len(sys.argv) - 1} files keep the rules")
    raise SystemExit(bool(problems))


if __name__ == "__main__":
    main()

"""``edge-ops bench``: the operators against eager PyTorch and other libraries, interleaved, raw samples kept."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Optional

if TYPE_CHECKING:
    from ..bench.cells import Cell
    from ..bench.runner import Settings

LEVELS = ("baseline", "avx2", "avx512")
CLOCKS = {"cpu": ("call",), "cuda": ("call", "kernel", "behind", "cold")}
COLD = "cold"  # takes tens of microseconds a call, so it is run where it is asked for
BLOCK_US = {"cpu": 300, "cuda": 2000}  # on a GPU each block ends with a synchronize, whose price is shared out
SLOW_TO_START = "compile"  # compiles for seconds a cell, so a quick look leaves it out


def _words(text: str) -> tuple[str, ...]:
    words = tuple(part for part in text.split(",") if part)
    if not words:
        raise argparse.ArgumentTypeError("must name at least one")
    return words


def _counts(text: str) -> tuple[int, ...]:
    try:
        counts = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers") from None
    if min(counts) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: every number must be 1 or more")
    return counts


def _threads(text: str) -> tuple[int, ...]:
    import torch

    return _counts(text.replace("all", str(torch.get_num_threads())))


def _levels(text: str) -> tuple[str, ...]:
    levels = _words(text)
    unknown = [level for level in levels if level not in LEVELS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: choose from {', '.join(LEVELS)}")
    return levels


def add(commands: Any) -> None:
    """Adds the command to the program's."""
    parser = commands.add_parser(
        "bench",
        help="time the operators against eager PyTorch and other libraries",
        description="Times every operator, shape and dtype against eager PyTorch and the libraries that are installed: "
        "arms interleaved trial by trial, one arm run twice to show the noise, every result checked first.",
    )
    preset = parser.add_mutually_exclusive_group()
    preset.add_argument("--quick", action="store_true", help="every operator at one geometry, under a minute")
    preset.add_argument("--goals", action="store_true", help="the cells of the project's goals; pass or fail")
    preset.add_argument("--decode", action="store_true", help="decode loops of real models instead of operators")
    parser.add_argument("--op", type=_words, help="operators, comma-separated (all)")
    parser.add_argument("--dtype", type=_words, help="of float32,bfloat16,float16 (CPU the first two, CUDA the last)")
    parser.add_argument("--tokens", type=_counts, help="token counts (1,8,32,128)")
    parser.add_argument("--shape", type=_words, help="widths or head layouts, such as 1024,16/8x128 (all)")
    parser.add_argument("--arms", type=_words, help="arms to run (all that are installed)")
    parser.add_argument("--model", type=_words, help="with --decode: of smollm2,gemma3 (both)")
    parser.add_argument("--threads", type=_threads, default=(1,), help="such as 1 or 1,all (1)")
    parser.add_argument("--level", type=_levels, help=f"ISA levels, each in a process of its own: {','.join(LEVELS)}")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="what to measure on (cpu)")
    parser.add_argument(
        "--clock", type=_words, help=f"with --device cuda: of {','.join(CLOCKS['cuda'])} (all but {COLD})"
    )
    parser.add_argument("--minutes", type=float, help="how long the run may take, shared among the cells")
    parser.add_argument("--trials", type=int, help="trials a pass (24; with --decode tokens, 48)")
    parser.add_argument("--keep", type=int, help="passes to keep for each cell (3, quick 1)")
    parser.add_argument("--passes", type=int, help="passes to run at most for them (12, quick 6)")
    parser.add_argument("--block-us", type=int, help="length of a block of calls (300; CUDA 2000)")
    parser.add_argument("--host", help="what to call this machine in the record (its name)")
    parser.add_argument("--out", type=Path, help="where to write the raw samples (.json or .json.gz)")


def run(arguments: argparse.Namespace) -> int:
    """Measures and prints the tables; 2 where the options name nothing that can be measured."""
    from ..bench import goals, report, store

    try:
        records = _measure(arguments)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if arguments.out:
        store.save(records, arguments.out)
    if arguments.goals:
        return goals.print_outcomes(records)
    print(report.markdown(report.blocks(records)))
    return 0


def _measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    from ..bench import runner, worker

    if arguments.device == "cuda":
        _refuse_on_cuda(arguments)
    if arguments.decode:
        return [_decode(arguments)]
    cells = _cells(arguments)
    settings = _settings(arguments)
    if not arguments.level:
        return [runner.run(cells, settings)]
    records: list[dict[str, Any]] = []
    for level in arguments.level:
        records += worker.run_at(level, cells, settings)
        if len(records[-1]["cells"]) < len(cells) * len(settings.threads):
            break  # interrupted
    return records


def _refuse_on_cuda(arguments: argparse.Namespace) -> None:
    """
    Raises:
        ValueError: no GPU, or an option that is for the CPU.
    """
    import torch

    for_the_cpu = {
        "--goals": arguments.goals,
        "--decode": arguments.decode,
        "--level": arguments.level,
        "--threads": arguments.threads != (1,),
    }
    for option, given in for_the_cpu.items():
        if given:
            raise ValueError(f"{option}: only for --device cpu")
    if not torch.cuda.is_available():
        raise ValueError("--device: PyTorch finds no CUDA device here")


def _decode(arguments: argparse.Namespace) -> dict[str, Any]:
    """
    Raises:
        ValueError: an option names something unknown, or transformers is missing.
    """
    from ..bench import cells, decode, environment

    settings = {
        "steps": arguments.trials or 48,
        "keep": arguments.keep or 3,
        "passes": arguments.passes or 8,
        "minutes": arguments.minutes,
    }
    arms = _known("arms", arguments.arms, tuple(decode.ARMS))
    if decode.EAGER not in arms:
        raise ValueError(f"--arms: {decode.EAGER} is missing, which the others are held against")
    try:
        return decode.run(
            _known("model", arguments.model, decode.MODELS),
            _known("dtype", arguments.dtype or ("bfloat16",), cells.ALL_DTYPES),
            arguments.threads,
            arms,
            settings,
            environment.host(arguments.host),
        )
    except ImportError as error:
        raise ValueError(f"{error}: decode loops need transformers (pip install 'edge-ops[models]')") from error


def _known(what: str, chosen: Optional[tuple[str, ...]], known: tuple[str, ...]) -> tuple[str, ...]:
    unknown = [name for name in chosen or () if name not in known]
    if unknown:
        raise ValueError(f"--{what}: {', '.join(unknown)} is unknown, choose from {', '.join(known)}")
    return chosen or known


def _cells(arguments: argparse.Namespace) -> list[Cell]:
    """
    Raises:
        ValueError: an option names something unknown, or nothing matches.
    """
    from ..bench import cells, goals

    operators = _known("op", arguments.op, cells.OPERATORS)
    dtypes = _known("dtype", arguments.dtype or cells.DTYPES[arguments.device], cells.ALL_DTYPES)
    if arguments.quick or arguments.goals:
        preset = cells.quick(dtypes) if arguments.quick else goals.needed_cells()
        keep: Callable[[Any], bool] = lambda cell: (  # noqa: E731
            cell.operator in operators
            and cell.dtype in dtypes
            and (arguments.tokens is None or cell.tokens in arguments.tokens)
            and (arguments.shape is None or cell.geometry.label in arguments.shape)
        )
        chosen = [cell for cell in preset if keep(cell)]
    else:
        chosen = list(cells.select(operators, dtypes, arguments.tokens or cells.TOKENS, arguments.shape))
    if not chosen:
        raise ValueError("no cell matches these options")
    return chosen


def _settings(arguments: argparse.Namespace) -> Settings:
    from ..bench import arms, goals
    from ..bench.runner import Settings

    device, known = arguments.device, arms.of_device(arguments.device)
    default = tuple(name for name in goals.ARMS if name in known) if arguments.goals else known
    clocks = _known("clock", arguments.clock, CLOCKS[device])
    if arguments.clock is None:
        clocks = tuple(clock for clock in clocks if clock != COLD)
    if arguments.quick:
        default = tuple(name for name in default if name != SLOW_TO_START)
    given = {name: getattr(arguments, name) for name in ("trials", "keep", "passes", "block_us", "minutes", "host")}
    quick = {"keep": 1, "passes": 6} if arguments.quick else {}
    options = {
        "block_us": BLOCK_US[device],
        **quick,
        **{name: value for name, value in given.items() if value is not None},
    }
    return Settings(
        threads=arguments.threads,
        arms=_known("arms", arguments.arms, known) if arguments.arms else default,
        device=device,
        clocks=clocks,
        **options,
    )

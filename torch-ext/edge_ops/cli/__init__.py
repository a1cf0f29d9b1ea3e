"""The command line: one module of this package a command, with its ``run``."""

import argparse
import importlib
import os
import sys
from typing import List, Optional

from .. import __version__
from . import bench, qualify, report, tune


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="edge-ops", description="Fused operators for decoding small transformers, with the same bits everywhere."
    )
    parser.add_argument("--version", action="version", version=f"edge-ops {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    demo = commands.add_parser(
        "demo",
        help="decode text with a real model, as it is and patched",
        description="Decodes a prompt greedily with a model as transformers runs it and patched to the operators, "
        "and compares texts, speed and where a decode step goes.",
    )
    demo.add_argument("path", nargs="?", help="a local model folder or GGUF file, instead of --model")
    demo.add_argument("--model", choices=("smollm2", "gemma3", "all"), default="all", help="which model (all)")
    demo.add_argument("--tokens", type=_several, default=48, help="tokens to decode (48)")
    demo.add_argument("--arms", default="eager,patched", help="some of eager,patched,compiled (eager,patched)")
    demo.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="of the weights (bfloat16)")
    demo.add_argument("--threads", type=_positive, help="threads of PyTorch's pool (its own choice)")
    demo.add_argument("--prompt", help="text to continue (each model has its own)")
    demo.add_argument("--random", action="store_true", help="random weights of the same shape; needs no download")

    info = commands.add_parser(
        "info",
        help="what was built, what this machine offers, and a self-check",
        description="Version, build, ISA levels, backends, and a self-check of every operator against the contract.",
    )
    info.add_argument("--json", action="store_true", help="print one JSON object")
    for command in (bench, report, tune, qualify):
        command.add(commands)
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, got {value}")
    return value


def _several(text: str) -> int:
    value = int(text)
    if value < 2:
        raise argparse.ArgumentTypeError(f"must be 2 or more, got {value}")
    return value


def main(argv: Optional[List[str]] = None) -> int:
    """Runs one command.

    Args:
        argv: the arguments after the program's name; those of the process where None.

    Returns:
        The exit status: 0 where the command did its work and every check in it held.
    """
    arguments = _parser().parse_args(argv)
    run = importlib.import_module(f".{arguments.command}", __package__).run
    try:
        status: int = run(arguments)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader, `head` for example, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0

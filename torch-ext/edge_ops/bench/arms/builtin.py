"""PyTorch's own `torch.nn.functional.rms_norm`."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.nn import functional as F

from ..problems import EPS, Problem
from .base import BOTH, Call, Prepare


def _rms_norm(problem: Problem) -> Call:
    width = (problem.cell.geometry.width,)
    names = {"rms_norm": F.rms_norm, "width": width, "eps": EPS, **problem.inputs}
    return Call("rms_norm(x, width, weight, eps)", names, lambda y: (y,), roundings=2)


class _Builtin:
    name = "F.rms_norm"
    title = "torch.nn.functional.rms_norm"
    devices = BOTH
    calls: Mapping[str, Prepare] = {"rms_norm": _rms_norm}

    def load(self) -> str:
        return torch.__version__


ARMS = (_Builtin(),)

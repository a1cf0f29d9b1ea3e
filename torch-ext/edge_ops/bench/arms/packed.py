"""Query, key and value side by side in one tensor, as the fused operators of vLLM and sglang take them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..problems import EPS, Problem
from .base import Call

SIZES = (64, 128, 256)  # of a head, that those operators have


def packed_heads(problem: Problem) -> tuple[Tensor, tuple[Tensor, Tensor], Callable[[], None]]:
    """`[tokens, (query + 2 * key heads) * head_size]`, its parts of query and key as heads, and what restores them."""
    query, key = problem.inputs["query"], problem.inputs["key"]
    tokens = query.shape[0]
    original = torch.cat([part.reshape(tokens, -1) for part in (query, key, key)], -1)
    qkv = original.clone()
    heads = qkv.view(tokens, -1, query.shape[-1])
    parts = heads[:, : query.shape[1]], heads[:, query.shape[1] : query.shape[1] + key.shape[1]]

    def restore() -> None:
        qkv.copy_(original)

    return qkv, parts, restore


def fused_qk_norm_rope(problem: Problem, function: Any, statement: str, **names: Any) -> Call | None:
    """A call in place on packed heads; `statement` is over `fused`, `qkv`, `heads`, `eps`, the weights and `names`."""
    size = problem.cell.geometry
    if size.head_size not in SIZES:
        return None
    qkv, results, restore = packed_heads(problem)
    names |= {name: problem.inputs[name] for name in ("q_weight", "k_weight")}
    names |= {"fused": function, "qkv": qkv, "eps": EPS}
    names["heads"] = (size.query_heads, size.key_heads, size.key_heads, size.head_size)
    return Call(statement, names, lambda _: results, restore, roundings=3)

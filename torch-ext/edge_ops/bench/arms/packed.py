"""Query, key and value side by side in one tensor, as the fused operators of vLLM and sglang take them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..problems import Problem

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

"""Results do not depend on how many threads there are, and any thread may call."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from support import calls
from support.routes import OPERATORS, ROUTES
from support.values import DTYPES, bits

PUBLIC = ROUTES["public"]


@pytest.fixture
def thread_count():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def big_call(op, seed, dtype):
    """Work enough to be split, in a number of rows that two and three threads do not divide."""
    rng = np.random.default_rng(seed)
    if op in ("rotary_embedding", "fused_qk_norm_rope"):
        return calls.BUILDERS[op](rng, (3, 331), 8, 3, 64, 64, dtype=dtype, layout="transposed")
    return calls.BUILDERS[op](rng, (331, 1024), dtype, layout="column slice")


def results(op, seed, dtype):
    call = big_call(op, seed, dtype)
    returned = call.run(PUBLIC[op])
    return [bits(t).clone() for t in returned.values() if t is not None]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", OPERATORS)
def test_one_two_and_three_threads(thread_count, op, dtype):
    thread_count(1)
    want = results(op, 1, dtype)
    for count in (2, 3):
        thread_count(count)
        for a, b in zip(results(op, 1, dtype), want):
            assert torch.equal(a, b), f"{count} threads"


@pytest.mark.parametrize("op", OPERATORS)
def test_a_row_alone_is_the_row_among_others(op):
    # batch invariance: the same row in any company, at any place
    call = big_call(op, 2, "bf16")
    a = call.arguments
    rows_of = {"rotary_embedding": "query", "fused_qk_norm_rope": "query"}.get(op, "x")
    parts = {name: value.clone() for name, value in a.items() if isinstance(value, torch.Tensor)}
    returned = call.run(PUBLIC[op])
    whole = next(t for t in returned.values() if t is not None)
    for i in (0, 7, 330):
        if rows_of == "query":
            one = {**a, **parts, "query": parts["query"][1, i][None].clone(), "key": None}
            one["positions"] = parts["positions"].view(3, -1)[1, i][None].clone()
            if op == "fused_qk_norm_rope":
                one["k_weight"] = None
            single, expected = PUBLIC[op](**one)[0][0], whole[1, i]
        else:
            one = {**a, **parts, "x": parts["x"][i].clone()}
            if "residual" in parts:
                one["residual"] = parts["residual"][i].clone()
            single, expected = PUBLIC[op](**one), whole[i]
            single = single[0] if isinstance(single, tuple) else single
        assert torch.equal(bits(single), bits(expected.contiguous())), i


def test_many_python_threads_at_once():
    # small calls (not split) and large ones (split over the pool) at the same time, each checked to the bit
    failures = []
    barrier = threading.Barrier(8)

    def work(seed):
        barrier.wait(timeout=60)
        try:
            for i in range(6):
                op = OPERATORS[(seed + i) % len(OPERATORS)]
                big_call(op, seed, list(DTYPES)[i % 3]).check(PUBLIC[op])
                calls.rms_norm(np.random.default_rng(seed), (2, 64), "bf16").check(PUBLIC["rms_norm"])
        except BaseException as error:  # reported by the main thread
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=300)
    assert not any(thread.is_alive() for thread in threads) and not failures, failures


def test_one_tensor_read_by_many_threads():
    x, w = torch.randn(64, 512, generator=torch.Generator().manual_seed(0)), torch.ones(512)
    want = PUBLIC["rms_norm"](x, w)
    with ThreadPoolExecutor(6) as pool:
        for got in pool.map(lambda _: PUBLIC["rms_norm"](x, w), range(60)):
            assert torch.equal(got, want)


def test_grad_mode_belongs_to_its_thread():
    # inference mode in one thread must not let another thread's call lose its gradient
    x = torch.ones(2, 8, requires_grad=True)
    inside, leave = threading.Event(), threading.Event()

    def other():
        with torch.inference_mode():
            inside.set()
            leave.wait(60)

    thread = threading.Thread(target=other)
    thread.start()
    inside.wait(60)
    try:
        assert PUBLIC["rms_norm"](x, None).requires_grad
        with pytest.raises(RuntimeError, match="requires grad"):
            PUBLIC["fused_add_rms_norm"](x, torch.ones(2, 8), None)
    finally:
        leave.set()
        thread.join()


def test_modes_of_another_thread_are_not_this_threads():
    from torch._subclasses.fake_tensor import FakeTensorMode

    inside, leave = threading.Event(), threading.Event()

    def other():
        with FakeTensorMode():
            inside.set()
            leave.wait(60)

    thread = threading.Thread(target=other)
    thread.start()
    inside.wait(60)
    try:
        assert type(PUBLIC["rms_norm"](torch.ones(2, 8), None)) is torch.Tensor
    finally:
        leave.set()
        thread.join()

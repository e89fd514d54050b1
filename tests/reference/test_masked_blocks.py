"""Masks on a CPU: blocks of queries over the keys they can see give the answers of all pairs compared at once."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from anyformer import Alibi, Attention, NoRelative, Rope
from anyformer.core import attend as seam
from anyformer.core.attend import Scores, attend, choose, reference
from anyformer.core.context import Context, lay_out
from anyformer.core.init import initialise
from anyformer.kernels import masked_blocks
from anyformer.kernels.compile import compile_function
from anyformer.kernels.masked_blocks import attend_in_blocks
from tests.reference.copying import agree, context_of, deviation, seeded

B, H, G, T, C = 2, 4, 2, 13, 6
CPU = torch.device("cpu")
HOLES = torch.ones(B, T, dtype=torch.bool)
HOLES[0, :4] = HOLES[1, 5:9] = HOLES[1, 11:] = False
NOBODY = HOLES.clone()
NOBODY[1] = False  # a row of padding alone
DOCUMENTS = torch.tensor([[0] * 5 + [1] * 8, [0] * 2 + [7] * 3 + [2] * 8])
GIVEN: dict[str, dict[str, Any]] = {
    "plain": {}, "holes": {"mask": HOLES}, "documents": {"documents": DOCUMENTS}, "an empty row": {"mask": NOBODY},
    "holes and documents": {"mask": HOLES, "documents": DOCUMENTS},
}  # fmt: skip
both_orders = pytest.mark.parametrize("causal", [True, False], ids=["causal", "both-ways"])


def describe(context: Context, causal: bool, window: int | None, keys: int = T) -> Scores:
    return Scores.among(
        context, keys, scale=0.4, causal=causal, window=window, soft_cap=None, relative=NoRelative(), tables=()
    )


def leaves(queries: int = T, keys: int = T) -> list[Tensor]:
    """Queries, and fewer heads of keys and of shorter values."""
    return [seeded(B, H, queries, C), seeded(B, G, keys, C, seed=1), seeded(B, G, keys, 3, seed=2)]


@both_orders
@pytest.mark.parametrize("kind", GIVEN)
def test_blocks_equal_all_pairs(kind: str, causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masked_blocks, "BLOCK", 3)
    q, k, v = leaves()
    for window in (None, 1, 2, 4, 7, T - 1):
        scores = describe(context_of(q[:, 0], **GIVEN[kind]), causal, window)
        if not scores.hides(T, T) or scores.hides_alike:
            continue
        found = attend_in_blocks(q, k, v, scores)
        agree(found, reference(q, k, v, scores), [q, k, v])
        assert found.isfinite().all()
        if window in (1, 2):  # control: one key more is noticed
            assert deviation(found, reference(q, k, v, replace(scores, window=window + 1))) > 1e-3


@both_orders
@pytest.mark.parametrize("window", [None, 1, 3, 8])
def test_new_tokens_see_the_newest_of_a_cache(
    window: int | None, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masked_blocks, "BLOCK", 3)
    keys, index = 20, torch.arange(100, 120)[None]
    for queries in (1, 5, 19):
        q, k, v = leaves(queries, keys)
        scores = Scores(scale=0.4, causal=causal, window=window, query_index=index[:, -queries:], key_index=index)
        if scores.hides(queries, keys):
            agree(attend_in_blocks(q, k, v, scores), reference(q, k, v, scores), [q, k, v])
    # A static cache: each row has tokens of its own number, and what is behind them must not be seen.
    q, k, v = leaves(2, keys)
    own = torch.tensor([[3, 4], [11, 12]])
    scores = Scores(scale=0.4, causal=True, window=window, query_index=own, key_index=index - 100, gaps=True)
    agree(attend_in_blocks(q, k, v, scores), reference(q, k, v, scores), [q, k, v])


def test_only_keys_that_a_block_sees_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masked_blocks, "BLOCK", 4)
    texts = torch.arange(32)[None] // 8  # four documents of eight tokens
    scores = describe(lay_out(1, 32, CPU, documents=texts), True, None, 32)
    blocks = list(masked_blocks.visible_blocks(scores, 32, 32, torch.float32))
    assert [(b.keys.start, b.keys.stop) for b in blocks[:4]] == [(0, 4), (0, 8), (8, 12), (8, 16)]
    window = list(masked_blocks.visible_blocks(describe(lay_out(1, 32, CPU), True, 6, 32), 32, 32, torch.float32))
    assert window[0].causal and max(b.keys.stop - b.keys.start for b in window[1:]) == 4 + 6 - 1
    # Control: where ranks do not follow each other nothing is left out.
    mixed = replace(scores, key_index=scores.key_index.flip(1), key_documents=texts.flip(1))
    assert all(b.keys == slice(0, 32) for b in masked_blocks.visible_blocks(mixed, 32, 32, torch.float32))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_half_precision_is_as_close_as_its_digits(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masked_blocks, "BLOCK", 3)
    scores = describe(context_of(seeded(B, T, 1), HOLES, DOCUMENTS), True, 4)
    exact = leaves()
    rounded = [x.detach().to(dtype).requires_grad_() for x in exact]
    wanted, found = reference(*exact, scores), attend_in_blocks(*rounded, scores)
    assert found.dtype == dtype
    close = 8 * torch.finfo(dtype).eps
    assert deviation(found.double(), wanted) < close
    slopes = torch.autograd.grad(found.square().sum(), rounded)
    for mine, theirs in zip(slopes, torch.autograd.grad(wanted.square().sum(), exact), strict=True):
        assert deviation(mine.double(), theirs) < 4 * close


def test_autocast_reaches_the_operation() -> None:
    scores = describe(context_of(seeded(B, T, 1)), True, 4)
    q, k, v = (x.float() for x in leaves())
    with torch.autocast("cpu", torch.bfloat16):
        assert attend_in_blocks(q, k.bfloat16(), v.bfloat16(), scores).dtype == torch.bfloat16


def test_the_operation_keeps_torchs_rules() -> None:
    """Shapes and strides told to the compiler, gradients, nothing changed in place."""
    q, k, v = (seeded(B, H, T, C, seed=i) for i in range(3))
    s = describe(context_of(q[:, 0], HOLES, DOCUMENTS), True, 4)
    given = (q, k, v, s.query_index, s.key_index, s.key_mask, s.query_documents, s.key_documents, True, 4, 0.4, False)
    torch.library.opcheck(masked_blocks.masked_attention, given)


def test_a_compiled_layer_takes_any_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seam, "PAIRS", 1)
    layer = Attention(heads=2, window=5).build(8, causal=True, relative=Rope())
    initialise(layer, "gpt2", 0)
    layer, rope = layer.double(), Rope().build(2, 4, 4, True)

    def run(x: Tensor) -> Tensor:
        context = lay_out(1, x.shape[1], CPU)
        return layer(x, context, None, rope(context, x.dtype))

    compiled = compile_function(run, fullgraph=True, dynamic=True)
    for length in (9, 17, 40):
        x = seeded(1, length, 8)
        found, wanted = compiled(x), run(x)
        assert deviation(found, wanted) < 1e-10
        mine, theirs = (torch.autograd.grad(y.square().sum(), x)[0] for y in (found, wanted))
        assert deviation(mine, theirs) < 1e-10


def test_each_kind_of_mask_has_its_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = (torch.zeros(1, 2, 512, 8) for _ in range(3))
    plain = describe(lay_out(1, 512, CPU), True, 64, 512)

    def engine(scores: Scores, dropout: float = 0.0, rows: int = 512) -> str:
        return choose(q[:, :, :rows], k[:, :, :rows], v[:, :, :rows], scores, dropout).engine

    assert engine(plain) == "blocks"
    assert engine(plain, dropout=0.1) == engine(replace(plain, relative=Alibi())) == "bands"
    assert engine(replace(plain, soft_cap=30.0)) == "bands"
    assert engine(replace(plain, window=400), dropout=0.1) == "sdpa"  # chunks of 400 would meet more than all keys
    assert engine(replace(plain, window=None)) == engine(replace(plain, window=600)) == "sdpa"
    short = describe(lay_out(1, 64, CPU), True, 16, 64)
    assert engine(short, rows=64) == "sdpa"


@both_orders
def test_dropout_in_chunks_keeps_the_mean(causal: bool) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 1, 512, 4) for _ in range(3))
    scores = describe(lay_out(1, 512, CPU), causal, 16, 512)
    assert choose(q, k, v, scores, 0.3).engine == "bands"
    draws = torch.stack([attend(q, k, v, scores, dropout=0.3) for _ in range(200)])
    assert deviation(draws.mean(0), reference(q, k, v, scores)) < 0.1
    assert deviation(draws[0], draws[1]) > 0.1  # control: each draw is another


# ---------------------------------------------------------------- what it costs

SHAPES = [(True, 1024, 256), (True, 4096, 2048), (False, 4096, 512)]


@pytest.mark.alone
@pytest.mark.parametrize(("causal", "length", "window"), SHAPES)
def test_a_window_is_not_slower_than_full_attention(causal: bool, length: int, window: int) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        best: dict[int | None, float] = {}
        x = torch.randn(1, length, 128)
        context = lay_out(1, length, CPU)
        layers: dict[int | None, Any] = {}
        for width in (None, window):
            layers[width] = Attention(heads=2, window=width).build(128, causal=causal, relative=NoRelative())
            initialise(layers[width], "gpt2", 0)
        for _, (name, layer) in itertools.product(range(4), layers.items()):
            began = time.process_time()
            layer(x, context, None, ()).sum().backward()
            took = time.process_time() - began
            best[name] = min(best.get(name, took), took)
        assert best[window] < 1.1 * best[None]
        if window * 4 <= length:  # control: the law notices full attention in place of a window
            assert best[window] < 0.8 * best[None]
    finally:
        torch.set_num_threads(threads)

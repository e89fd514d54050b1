"""A step that torch compiles writes the same tokens, and is compiled once for all lengths; ours: test_plain_step.py."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from anyformer import LM, Attention, Block, Model, Recurrent, Rope, Stack, Tokens, UserError
from anyformer.generation import Generation, generate
from anyformer.generation.cache import compiled_store
from anyformer.generation.runners.compiled import Compiled, compiled
from anyformer.kernels.compile import load

GREEDY = Generation(max_new_tokens=12)
DRAWN = Generation(max_new_tokens=12, do_sample=True, temperature=1.3, top_k=20, top_p=0.95, seed=7)


def small(seed: int = 0, depth: int = 3) -> torch.nn.Module:
    """Norms behind the sums: not plain, and left to torch's compiler."""
    block = Block(mixer=Attention(heads=4, kv_heads=2), relative=Rope(), place="post")
    stack = Stack(width=32, depth=depth, causal=True, block=block)
    return Model(embed=Tokens(vocab=61), stack=stack, head=LM()).build(seed=seed).eval()


def prompts(rows: int, length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 61, (rows, length), generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def pair() -> tuple[torch.nn.Module, Compiled]:
    model = small()
    return model, compiled(model)


def count() -> int:
    """Graphs that the compiler has been given so far."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


@pytest.mark.parametrize("settings", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_same_tokens_and_no_further_graphs(pair: tuple[torch.nn.Module, Compiled], settings: Generation) -> None:
    """Lengths from one block of columns to several, one row and three (rounded up to four) with padding."""
    model, code = pair
    for rows in (1, 3):
        generate(code, prompts(rows, 4), settings=settings)  # warm
    made = count()
    for rows, length, new in ((1, 2, 5), (1, 60, 12), (1, 130, 70), (3, 9, 7), (4, 100, 40)):
        ids = prompts(rows, length, seed=length)
        mask = torch.ones_like(ids, dtype=torch.bool)
        if rows > 1:
            mask[1, : length // 2] = False
        asked = Generation(**{**vars(settings), "max_new_tokens": new, "prefill_chunk_size": 50 if new > 20 else None})
        want, got = (generate(one, ids, mask, settings=asked) for one in (model, code))
        assert torch.equal(want.ids, got.ids), (rows, length, new)
        assert (want.logprobs - got.logprobs).abs().max() < 1e-4
    assert not code.lost and made == count()


def test_columns_of_one_size_would_be_seen_by_the_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the law above: where the compiler is not told that columns vary, longer texts make graphs."""
    monkeypatch.setattr(compiled_store, "mark_dynamic", lambda tensor, axis: None)
    code = compiled(small(depth=1))
    with load().patch(automatic_dynamic_shapes=False):  # it would also remember what varied in the tests before
        generate(code, prompts(1, 5), settings=GREEDY)
        made = count()
        generate(code, prompts(1, 100), settings=GREEDY)
    assert count() > made


def test_beams_copies_and_a_draft(pair: tuple[torch.nn.Module, Compiled]) -> None:
    """Rows that are copied, change places or are taken back: what other ways of decoding ask for."""
    model, code = pair
    ids = prompts(1, 6)
    for settings in (
        Generation(max_new_tokens=9, num_beams=4, num_return_sequences=2),
        Generation(max_new_tokens=9, do_sample=True, seed=1, num_return_sequences=4),
    ):
        assert torch.equal(generate(model, ids, settings=settings).ids, generate(code, ids, settings=settings).ids)
    want = generate(model, ids, settings=GREEDY)
    got = generate(code, ids, settings=GREEDY, draft=model)
    assert torch.equal(want.ids, got.ids) and not code.lost


def test_weights_are_read_anew() -> None:
    """A step is compiled for shapes, not for the weights it found."""
    model = small(seed=1, depth=1)
    code, ids = compiled(model), prompts(1, 5)
    generate(code, ids, settings=GREEDY)
    made = count()
    model.load_state_dict(small(seed=2, depth=1).state_dict())
    assert torch.equal(
        generate(code, ids, settings=GREEDY).ids, generate(small(seed=2, depth=1), ids, settings=GREEDY).ids
    )
    assert count() == made and compiled(code) is code


def test_what_has_no_places_is_refused() -> None:
    stack = Stack(width=32, depth=1, causal=True, block=Block(mixer=Recurrent()))
    with pytest.raises(UserError, match="static cache"):
        compiled(Model(embed=Tokens(vocab=61), stack=stack, head=LM()).build(seed=0))


WITHOUT = """
import logging, torch
logging.basicConfig(format="%(message)s")
from anyformer import LM, Attention, Block, Model, Stack, Tokens
from anyformer.kernels.compile import load
from anyformer.generation import Generation, generate
from anyformer.generation.cache import compiled_store
from anyformer.generation.runners.compiled import compiled
stack = Stack(width=16, depth=1, causal=True, block=Block(mixer=Attention(heads=2)))
model = Model(embed=Tokens(vocab=11), stack=stack, head=LM()).build(seed=0).eval()
ids, asked = torch.tensor([[1, 2, 3]]), Generation(max_new_tokens=5)
code = compiled(model)
assert torch.equal(generate(model, ids, settings=asked).ids, generate(code, ids, settings=asked).ids)
assert code.lost
"""


def test_without_a_compiler_it_says_so_once(tmp_path: object) -> None:
    found = subprocess.run(
        [sys.executable, "-c", WITHOUT], capture_output=True, text=True, timeout=240,
        env={**os.environ, "CXX": "/bin/false", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert found.returncode == 0, found.stderr[-2000:]
    assert found.stderr.count("not compiled") == 1, found.stderr[-2000:]

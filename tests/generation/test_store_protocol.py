"""The one protocol of decoding: whatever a store is asked to do, a sequence gets the logits it gets alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from anyformer.errors import UserError
from anyformer.generation.cache.compiled_store import CompiledStore
from anyformer.generation.cache.eager_store import EagerStore
from anyformer.generation.cache.graph_store import GraphStore
from anyformer.generation.cache.static_store import StaticStore
from anyformer.generation.cache.store import SequenceStore
from anyformer.generation.runners.compiled import compiled
from anyformer.mixers import Recurrent
from tests.generation.nets import POSITIONS, build, decoder
from tests.laws.nets import build as fill
from tests.laws.nets import language

CLOSE = 1e-4  # float32, as our C++ has no other
ATTENTION = build(decoder(*POSITIONS["rope"]))
RECURRENCE = fill(language(mixer=Recurrent("gru")))

Make = Callable[[], SequenceStore]
STORES: dict[str, Make] = {
    "eager": lambda: EagerStore(ATTENTION, limit=60, prefix_cache=False, rolling=False),
    "eager, prefixes": lambda: EagerStore(ATTENTION, limit=60, rolling=False),
    "eager, each alone": lambda: EagerStore(ATTENTION, limit=60, batched=False, prefix_cache=False, rolling=False),
    "recurrence, each alone": lambda: EagerStore(
        RECURRENCE, limit=60, batched=False, prefix_cache=False, rolling=False
    ),
    "static": lambda: StaticStore(ATTENTION, limit=60),
    "static, strict": lambda: StaticStore(ATTENTION, limit=60, strict=True),
    "static, recorded": lambda: StaticStore(ATTENTION, limit=60, recorded=True),
    "compiled": lambda: CompiledStore(compiled(ATTENTION), capacity=8, limit=60),
}


@torch.no_grad()
def right(model: Any, tokens: list[int]) -> Tensor:
    """Logits (V,) of the token that follows, from one full pass."""
    return model(torch.tensor([tokens])).logits[0, -1]


class Anything(int):
    """A length that is never wrong, so that the logits must tell."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


def ids(chance: random.Random, count: int) -> list[int]:
    return [chance.randrange(11) for _ in range(count)]


def largest_gap(store: SequenceStore, seed: int) -> float:
    """Random adding, extending, stepping, truncating and freeing; the largest error of any logit."""
    chance, worst = random.Random(seed), 0.0
    held: dict[int, list[int]] = {}
    least: dict[int, int] = {}  # what a sequence was truncated to: never less later

    def check(number: int, logits: Tensor) -> None:
        nonlocal worst
        worst = max(worst, float((logits - right(store.model, held[number])).abs().max()))

    for _ in range(40):
        act = chance.choice(["add", "extend", "step", "step", "truncate", "free"])
        some = chance.sample(sorted(held), chance.randint(1, len(held))) if held else []
        if act == "add" and store.available:
            prompt = ids(chance, chance.randint(1, 6))
            number, cached = store.add(prompt)
            held[number], least[number] = prompt, 1
            check(number, store.logits(store.extend({number: prompt[cached:]})[0][-1:])[0])
        elif act == "extend" and some:
            pieces = {number: ids(chance, chance.randint(1, 4)) for number in some}
            for number, hidden in zip(pieces, store.extend(pieces), strict=True):
                held[number] = held[number] + pieces[number]
                check(number, store.logits(hidden[-1:])[0])
        elif act == "step" and some:
            tokens = ids(chance, len(some))
            for number, token, logits in zip(some, tokens, store.step(some, torch.tensor(tokens)), strict=True):
                held[number] = [*held[number], token]
                check(number, logits)
        elif act == "truncate" and some:
            number = some[0]
            least[number] = chance.randint(max(least[number], len(held[number]) - 2), len(held[number]))
            held[number] = held[number][: least[number]]
            store.truncate(number, least[number])
        elif act == "free" and len(held) > 2:
            del held[some[0]]
            store.free(some[0], keep=chance.random() < 0.5)
        held = {number: tokens for number, tokens in held.items() if len(tokens) < 50}
        assert all(store.length(number) == len(tokens) for number, tokens in held.items())
    return worst


@pytest.mark.parametrize("name", STORES)
def test_whatever_a_store_is_asked_a_sequence_gets_its_own_logits(name: str) -> None:
    for seed in range(4):
        assert largest_gap(STORES[name](), seed) < CLOSE, seed


@pytest.mark.parametrize("name", STORES)
def test_copies_and_beams_go_on_from_what_they_were_copied_from(name: str) -> None:
    store, prompts = STORES[name](), [[1, 2, 3], [4], [5, 6]]
    numbers = [store.add(prompt).number for prompt in prompts]
    first = store.prefill(dict(zip(numbers, prompts, strict=True)))
    for logits, prompt in zip(first, prompts, strict=True):
        assert (logits - right(store.model, prompt)).abs().max() < CLOSE
    sequences = store.fork(2)
    texts = [list(prompt) for prompt in prompts for _ in range(2)]
    assert len(set(sequences)) == 6 and store.available == 2
    for origins in ([0, 0, 3, 2, 5, 5], [1, 0, 2, 2, 4, 5]):
        store.select(sequences, torch.tensor(origins))
        texts = [[*texts[origin], 1 + place] for place, origin in enumerate(origins)]
        logits = store.step(sequences, torch.tensor([text[-1] for text in texts]))
        for got, text in zip(logits, texts, strict=True):
            assert (got - right(store.model, text)).abs().max() < CLOSE
    with pytest.raises(UserError, match="12 sequences do not fit 8"):
        store.fork(2)


def test_a_recorded_batch_starts_forks_and_steps() -> None:
    """Without a GPU its step is called plainly."""
    prompts = [[1, 2, 3], [4], [5, 6]]
    store = GraphStore(ATTENTION, capacity=6, limit=40)
    numbers = [store.add(prompt).number for prompt in prompts]
    store.prefill(dict(zip(numbers, prompts, strict=True)))
    sequences = store.fork(2)
    store.select(sequences, torch.tensor([1, 0, 2, 2, 5, 4]))
    logits = store.step(sequences, torch.arange(6))
    for place, got in enumerate(logits):
        assert (got - right(ATTENTION, [*prompts[place // 2], place])).abs().max() < CLOSE


@pytest.mark.parametrize("name", ["eager, each alone", "static", "compiled"])
def test_control_a_store_that_keeps_what_was_truncated_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind: Any = type(STORES[name]())
    kept = kind.length
    monkeypatch.setattr(kind, "truncate", lambda self, sequence, length: None)
    monkeypatch.setattr(kind, "length", lambda self, sequence: Anything(kept(self, sequence)))
    assert max(largest_gap(STORES[name](), seed) for seed in range(3)) > 100 * CLOSE


@pytest.mark.parametrize("name", ["eager", "static", "compiled"])
def test_control_beams_that_stay_where_they_were_are_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = STORES[name]()
    monkeypatch.setattr(type(store), "select", lambda self, sequences, origins: None)
    number = store.add([1, 2]).number
    store.prefill({number: [1, 2]})
    sequences = store.fork(2)
    store.step(sequences, torch.tensor([3, 4]))
    store.select(sequences, torch.tensor([1, 1]))
    logits = store.step(sequences, torch.tensor([5, 5]))
    assert (logits[0] - right(store.model, [1, 2, 4, 5])).abs().max() > 100 * CLOSE

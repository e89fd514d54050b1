"""Cached = uncached and batched = single, in tokens: positions x norms x key/value heads x window x way to choose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from anyformer.core.state import KVCache
from anyformer.generation import Generation, generate
from anyformer.generation.beam import beam_search
from anyformer.generation.prompts import GenerationInputs
from tests.generation.nets import (
    HEADS,
    NORMS,
    POSITIONS,
    PROMPTS,
    build,
    decoder,
    doubt,
    full_logits,
    ids,
    padded,
    pair,
    rows,
    same,
    uncached,
)

NEW = 7
WAYS = {
    "greedy": Generation(max_new_tokens=NEW, eos_token_id=3),
    "sampled": Generation(max_new_tokens=NEW, eos_token_id=3, do_sample=True, temperature=1.3, seed=11),
    "beam": Generation(max_new_tokens=NEW, eos_token_id=3, num_beams=3, num_return_sequences=2),
}
SOURCES = [ids(1, length, seed=50 + length) for length in (6, 2, 1)]
every_position = pytest.mark.parametrize("position", POSITIONS)
every_norm = pytest.mark.parametrize("norm", NORMS)
every_sharing = pytest.mark.parametrize("kv_heads", [HEADS, 1], ids=["mha", "mqa"])
every_window = pytest.mark.parametrize("window", [None, 4], ids=["whole", "window"])
every_way = pytest.mark.parametrize("way", WAYS)


class Recomputing:
    """A store that caches nothing: every step is a full pass over the text so far."""

    def __init__(self, net: Any, text: Tensor, source: Tensor | None) -> None:
        self.net, self.text, self.source = net, text, source

    def step(self, sequences: Sequence[int], tokens: Tensor) -> Tensor:
        self.text = torch.cat([self.text, tokens[:, None]], 1)
        source = None if self.source is None else self.source.expand(len(self.text), -1)
        return full_logits(self.net, self.text, source)

    def fork(self, copies: int) -> list[int]:
        self.text = self.text.repeat_interleave(copies, 0)
        return list(range(len(self.text)))

    def select(self, sequences: Sequence[int], origins: Tensor) -> None:
        self.text = self.text[origins]


@torch.no_grad()
def uncached_beams(
    net: Any, prompt: Tensor, settings: Generation, source: Tensor | None
) -> tuple[list[list[int]], Tensor]:
    first = full_logits(net, prompt, source)
    store: Any = Recomputing(net, prompt, source)
    found = beam_search(store, first, GenerationInputs(prompt, None, prompt.shape[1], NEW), settings)
    return rows(found), found.scores


def agree(net: Any, way: str, prompts: list[Tensor], sources: list[Tensor] | None, side: str) -> list[bool]:
    """For every prompt: alone = in the batch, and alone = without a cache."""
    settings = WAYS[way]
    if sources is not None:
        settings = Generation(**{**vars(settings), "decoder_start_token_id": 1})
        prompts = [torch.tensor([[1]])] * len(sources)
    count = settings.num_return_sequences
    given, mask = padded(prompts if sources is None else sources, side)
    together = generate(net, given, mask, settings=settings)
    verdicts = []
    for i, prompt in enumerate(prompts):
        source = None if sources is None else sources[i]
        alone = generate(net, prompt if source is None else source, settings=settings)
        mine = slice(i * count, (i + 1) * count)
        if way == "beam":
            plain, scores = uncached_beams(net, prompt, settings, source)
            close = (alone.scores - scores).abs().max() < 1e-4 and (
                alone.scores - together.scores[mine]
            ).abs().max() < 1e-4
            verdicts.append(bool(close) and plain[0] == rows(alone)[0] == rows(together)[mine][0])
        else:
            gap = doubt(net, prompt, settings, source)
            one, plain = rows(alone)[0], uncached(net, prompt, settings, source)
            verdicts += [same(one, plain, gap), same(rows(together)[mine][0], one, gap)]
    return verdicts


@every_way
@every_window
@every_sharing
@every_norm
@every_position
def test_decoders(position: str, norm: str, kv_heads: int, window: int | None, way: str, cells: Counter) -> None:
    where, relative = POSITIONS[position]
    net = build(decoder(where, relative, norm=NORMS[norm], kv_heads=kv_heads, window=window))
    assert all(agree(net, way, PROMPTS, None, "left" if kv_heads == 1 else "right"))
    cells["generation", "run"] += 1


@every_way
@every_window
@every_position
def test_encoder_decoders(position: str, window: int | None, way: str, cells: Counter) -> None:
    where, relative = POSITIONS[position]
    net = build(pair(where, relative, window=window, kv_heads=2))
    assert all(agree(net, way, PROMPTS, SOURCES, "left" if window else "right"))
    cells["generation", "run"] += 1


@pytest.mark.parametrize("chunk, cache", [(None, "static"), (1, "dynamic"), (3, "dynamic"), (5, "static")])
@every_window
@every_position
def test_a_prompt_may_be_read_in_chunks(position: str, window: int | None, chunk: int | None, cache: str) -> None:
    net = build(decoder(*POSITIONS[position], window=window))
    tokens, mask = padded(PROMPTS, "right")
    whole = generate(net, tokens, mask, settings=WAYS["greedy"])
    parts = Generation(max_new_tokens=NEW, eos_token_id=3, prefill_chunk_size=chunk, cache_implementation=cache)
    got = generate(net, tokens, mask, settings=parts)
    assert torch.equal(got.ids, whole.ids)
    assert (got.logprobs - whole.logprobs).abs().max() < 1e-4


def test_control_a_cache_that_forgets_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = KVCache.update

    def losing(self: KVCache, k: Tensor, v: Tensor, window: int | None = None) -> tuple[Tensor, Tensor]:
        if self.values is not None and self.held:
            self.values[:, :, self.held - 1] = 0.0
        return kept(self, k, v, window)

    monkeypatch.setattr(KVCache, "update", losing)
    for way in WAYS:
        broken = [agree(build(decoder(*POSITIONS[name])), way, PROMPTS, None, "left") for name in ("rope", "learned")]
        assert sum(not good for verdicts in broken for good in verdicts) >= 3


def test_control_padding_taken_for_text_is_noticed() -> None:
    tokens, mask = padded(PROMPTS, "left")
    for way, settings in WAYS.items():
        net = build(decoder(*POSITIONS["rope"]))
        assert rows(generate(net, tokens, settings=settings)) != rows(generate(net, tokens, mask, settings=settings)), (
            way
        )


@pytest.mark.parametrize("way", ["greedy", "sampled"])
def test_a_hundred_prompts_alone_and_in_batches(way: str) -> None:
    """Mixed lengths in batches of 2 to 32: the same tokens, all hundred."""
    prompts = [ids(1, 1 + i * 7 % 12, seed=i) for i in range(100)]
    for position in ("learned", "rope", "alibi"):
        net = build(decoder(*POSITIONS[position]))
        alone = [rows(generate(net, prompt, settings=WAYS[way]))[0] for prompt in prompts]
        at, size = 0, 2
        while at < len(prompts):
            some = prompts[at : at + size]
            got = rows(generate(net, *padded(some, "left" if size % 2 else "right"), settings=WAYS[way]))
            for prompt, one, other in zip(some, alone[at : at + size], got, strict=True):
                assert same(one, other, doubt(net, prompt, WAYS[way]))
            at, size = at + size, min(32, size * 2 + 1)

"""Probabilities of texts by the chain rule."""

from __future__ import annotations

import importlib
import itertools
import math

import pytest
import torch

from anyformer import UserError
from anyformer.generation import Generation, generate, perplexity, score
from tests.generation.nets import POSITIONS, build, decoder, ids, padded, pair

TEXTS = [ids(1, length, seed=length) for length in (9, 4, 2, 6)]


@pytest.mark.parametrize("name", POSITIONS)
def test_all_texts_of_three_symbols_sum_to_one(name: str) -> None:
    net = build(decoder(*POSITIONS[name], vocab=3), dtype=torch.float64)
    every = torch.tensor(list(itertools.product(range(3), repeat=4)))
    for first in range(3):
        whole = torch.cat([torch.full((81, 1), first), every], 1)
        assert score(net, whole).total.exp().sum().item() == pytest.approx(1.0, abs=1e-9)
    assert score(net, every).total.exp().sum().item() == pytest.approx(3.0, abs=1e-9)  # control: the first is given
    two = build(pair(*POSITIONS[name]), dtype=torch.float64)
    two.head.weight.data[3:] = 0.0
    longer = torch.cat([torch.ones(81, 1, dtype=torch.long), every], 1)
    assert score(two, longer, source=ids(1, 5).expand(81, -1)).total.exp().sum().item() < 1.0  # control: not every text


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", POSITIONS)
@torch.no_grad()
def test_one_masked_pass_equals_the_product_of_separate_passes(name: str, side: str) -> None:
    net = build(decoder(*POSITIONS[name]), dtype=torch.float64)
    tokens, mask = padded(TEXTS, side)
    got = score(net, tokens, mask)
    assert got.counts.tolist() == [text.shape[1] - 1 for text in TEXTS]
    for row, text in enumerate(TEXTS):
        apart = [net(text[:, :t]).logits[0, -1].log_softmax(-1)[text[0, t]] for t in range(1, text.shape[1])]
        assert (got.logprobs[row][got.scored[row]] - torch.stack(apart)).abs().max() < 1e-9
        assert abs(float(got.total[row]) - float(sum(apart))) < 1e-9
        assert (got.logprobs[row][~mask[row]] == 0).all()
    blind = score(net, tokens)  # control: padding taken for text
    assert (blind.total - got.total)[1:].abs().min() > 1e-3


def test_the_score_of_what_was_written_is_its_score() -> None:
    for net, given in (
        (build(decoder(*POSITIONS["rope"])), {}),
        (build(pair(*POSITIONS["buckets"])), {"decoder_start_token_id": 1}),
    ):
        source = ids(3, 6)
        found = generate(net, source, settings=Generation(max_new_tokens=7, do_sample=True, seed=1, **given))
        extra = {"source": source} if given else {}
        again = score(net, found.ids, **extra)
        assert (again.logprobs[:, found.prompt :] - found.logprobs).abs().max() < 1e-4
        other = score(net, found.ids.roll(1, 1), **extra)
        assert (other.logprobs[:, found.prompt :] - found.logprobs).abs().max() > 1e-2  # control


def test_scores_come_in_pieces_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    net = build(decoder(*POSITIONS["rope"]))
    tokens, mask = padded(TEXTS, "right")
    whole = score(net, tokens, mask)
    monkeypatch.setattr(importlib.import_module("anyformer.generation.score"), "PIECE", 200)
    assert (score(net, tokens, mask).logprobs - whole.logprobs).abs().max() < 1e-5


def test_perplexity_states_its_stride() -> None:
    net = build(decoder(*POSITIONS["learned"]), dtype=torch.float64)
    text = ids(1, 100)
    for window, stride in ((40, 20), (40, 1), (30, 29), (2, 1)):
        got = perplexity(net, text, window=window, stride=stride)
        total = 0.0
        ends = [window]
        while ends[-1] < 100:
            ends.append(min(100, ends[-1] + stride))
        start_of = {t: max(0, next(e for e in ends if e > t) - window) for t in range(1, 100)}
        with torch.no_grad():
            for t in range(1, 100):
                total += float(net(text[:, start_of[t] : t]).logits[0, -1].log_softmax(-1)[text[0, t]])
        assert got.value == pytest.approx(math.exp(-total / 99), rel=1e-9)
        assert got.tokens == 99 and f"stride {stride}" in str(got)
    assert perplexity(net, text, window=40, stride=1).value != pytest.approx(
        perplexity(net, text, window=40, stride=39).value, rel=1e-6
    )  # control: the stride is part of the answer
    free = build(decoder(*POSITIONS["rope"]), dtype=torch.float64)
    assert perplexity(free, text).value == pytest.approx(math.exp(-float(score(free, text).total) / 99), rel=1e-9)


@pytest.mark.quick
def test_wrong_texts_are_refused() -> None:
    net = build(decoder(*POSITIONS["learned"]))
    for call, message in (
        (lambda: score(net, ids(1, 41)), "41 tokens does not fit 40 learned positions"),
        (lambda: score(net, torch.tensor([[1, 23]])), "the id 23; ids go from 0 to 22"),
        (lambda: score(build(pair()), ids(1, 3)), "pass source="),
        (lambda: perplexity(net, ids(2, 9)), "expected one text"),
        (lambda: perplexity(net, ids(1, 99), window=50), "window 50 is not between 2 and 40 learned positions"),
        (lambda: perplexity(net, ids(1, 99), window=20, stride=20), "stride 20 is not between 1 and 19"),
    ):
        with pytest.raises(UserError, match=message):
            call()

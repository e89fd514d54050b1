"""Rows with different settings, chosen together, get the tokens each would get from `generate` alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from anyformer.errors import UserError
from anyformer.generation import Generation
from anyformer.generation.batch_sampler import BatchSampler, SamplerState
from anyformer.generation.decode import Decoding
from anyformer.generation.logits import apply_top_k, apply_top_p, apply_top_p_sorted
from anyformer.generation.noise import draw, gumbel
from anyformer.generation.prompts import GenerationInputs

VOCAB, STEPS = 13, 6


class Script:
    """A store whose logits were written down before: (steps, V)."""

    def __init__(self, scores: Tensor) -> None:
        self.scores, self.at = scores, 0

    def step(self, sequences: Sequence[int], tokens: Tensor) -> Tensor:
        self.at += 1
        return self.scores[self.at][None]

    def fork(self, copies: int) -> list[int]:
        """One text a prompt."""
        return [0]


def alone(scores: Tensor, prompt: list[int], how: Generation) -> tuple[list[int], list[float]]:
    """What `generate` chooses from these scores, whatever ends a text."""
    store: Any = Script(scores)
    inputs = GenerationInputs(torch.tensor([prompt]), None, len(prompt), STEPS)
    decoding = Decoding(nn.Identity(), store, scores[:1], inputs, how)
    steps = [decoding.advance() for _ in range(STEPS)]
    live = [bool(step.live) for step in steps]
    tokens = [int(step.tokens) for step, on in zip(steps, live, strict=True) if on]
    return tokens, [float(step.logprobs) for step, on in zip(steps, live, strict=True) if on]


def together(
    scores: Tensor, prompts: list[list[int]], hows: list[Generation], seeds: list[int]
) -> list[tuple[list[int], list[float]]]:
    """The same by one `BatchSampler`; rows start one after the other and leave when `generate` would end them."""
    sampler, found = BatchSampler(VOCAB), [(list[int](), list[float]()) for _ in hows]
    states: dict[int, SamplerState] = {}
    late = list(range(len(hows)))  # row n begins n steps later
    for step in range(STEPS + len(hows)):
        for row, how in enumerate(hows):
            if late[row] == step:
                states[row] = sampler.add(how, prompts[row], seeds[row])
        keys = sorted(states)
        if not keys:
            continue
        now = torch.stack([scores[row, len(found[row][0])] for row in keys])
        sampled = sampler.sample([states[row] for row in keys], now).on_host
        for row, told in zip(keys, sampled, strict=True):
            found[row][0].append(told.token)
            found[row][1].append(told.logprob)
            if len(found[row][0]) == STEPS or told.token in hows[row].ends:
                del states[row]
    return found


@st.composite
def a_way(pick: Any) -> Generation:
    """Any settings of one row."""
    maybe = lambda *values: pick(st.sampled_from([None, *values]))  # noqa: E731
    ids = st.integers(0, VOCAB - 1)
    return Generation(
        max_new_tokens=STEPS, do_sample=pick(st.booleans()),
        temperature=pick(st.sampled_from([0.0, 1e-46, 0.3, 1.0, 1.0, 1.7])), top_k=maybe(1, 3, 5, 40),
        top_p=maybe(0.1, 0.5, 0.9, 1.0), min_p=maybe(0.0, 0.05, 0.5), seed=pick(st.integers(-(2**63), 2**64)),
        repetition_penalty=pick(st.sampled_from([1.0, 1.0, 1.5])), logprobs=pick(st.sampled_from([0, 0, 3])),
        presence_penalty=pick(st.sampled_from([0.0, 0.0, 1.5])), frequency_penalty=pick(st.sampled_from([0.0, -0.5])),
        no_repeat_ngram_size=pick(st.sampled_from([0, 0, 1, 2])), suppress_tokens=pick(st.lists(ids, max_size=2)),
        eos_token_id=maybe(2, 5), min_new_tokens=maybe(1, 3), min_length=maybe(2, 6),
        forced_bos_token_id=maybe(4), forced_eos_token_id=maybe(2, [2, 5]),
    )  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(st.lists(a_way(), min_size=1, max_size=5), st.integers(0, 2**31), st.booleans())
def test_a_row_gets_the_tokens_it_gets_alone(hows: list[Generation], seed: int, coarse: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = 2 * torch.randn(len(hows), STEPS, VOCAB, generator=generator)
    scores = scores.round() if coarse else scores  # ties, as half precision makes them
    prompts = [torch.randint(VOCAB, (1 + row,), generator=generator).tolist() for row in range(len(hows))]
    seeds = [int(how.seed) for how in hows if isinstance(how.seed, int)]
    found = together(scores, prompts, hows, seeds)
    for row, how in enumerate(hows):
        tokens, logprobs = alone(scores[row], prompts[row], how)
        assert found[row][0] == tokens
        assert torch.allclose(torch.tensor(found[row][1]), torch.tensor(logprobs), atol=1e-6)


@pytest.mark.quick
def test_another_seed_is_noticed() -> None:
    """Control: with one seed shifted that row differs and its neighbours do not."""
    how = [Generation(max_new_tokens=STEPS, do_sample=True, seed=row, temperature=1 + row / 9) for row in range(3)]
    scores = torch.randn(3, STEPS, VOCAB, generator=torch.Generator().manual_seed(0))
    plain = together(scores, [[1]] * 3, how, [0, 1, 2])
    shifted = together(scores, [[1]] * 3, how, [0, 2, 2])
    assert [plain[row] == shifted[row] for row in range(3)] == [True, False, True]
    assert plain[1][0] == alone(scores[1], [1], how[1])[0]


# ---------------------------------------------------------------- many tokens, where a processor takes short cuts

LARGE = 9000


@st.composite
def many_scores(pick: Any) -> Tensor:
    """Flat, peaked, tied and mostly forbidden rows of a large vocabulary."""
    generator = torch.Generator().manual_seed(pick(st.integers(0, 2**31)))
    scores = pick(st.sampled_from([0.0, 0.01, 1.0, 4.0, 40.0])) * torch.randn(2, LARGE, generator=generator)
    if pick(st.booleans()):
        scores = scores.round()
    if pick(st.booleans()):
        scores[torch.rand(2, LARGE, generator=generator) < pick(st.sampled_from([0.5, 0.999]))] = -torch.inf
        scores[:, 77] = 0.0
    return scores.double() if pick(st.booleans()) else scores


@settings(max_examples=40, deadline=None)
@given(many_scores(), st.integers(-(2**63), 2**63 - 2), st.integers(0, 10**6))
def test_the_winner_of_the_race_is_the_largest_sum(scores: Tensor, seed: int, step: int) -> None:
    seeds = torch.tensor([seed, seed + 1])
    plain = (scores.double() + gumbel(seeds, step, LARGE)).argmax(-1)
    assert draw(scores, seeds, step).tolist() == plain.tolist()
    assert draw(scores, seeds, torch.tensor([step, step])).tolist() == plain.tolist()


@settings(max_examples=40, deadline=None)
@given(many_scores(), st.sampled_from([1e-9, 0.1, 0.5, 0.9, 0.999]), st.sampled_from([1, 2, 50, 5000, LARGE, 10**6]))
def test_short_cuts_narrow_as_sorting_does(scores: Tensor, p: float, k: int) -> None:
    kept, sorted_ = apply_top_p(scores, p) > -torch.inf, apply_top_p_sorted(scores, p) > -torch.inf
    shares = scores.double().softmax(-1)
    differing = kept != sorted_
    if differing.any():  # only where the shares reach p to within rounding
        reached = (shares * (kept & sorted_)).sum(-1)[differing.any(-1)]
        assert ((reached - p).abs() < 1e-9).all() or (shares[differing] < 1e-9).all()
    assert torch.equal(apply_top_k(scores, k) > -torch.inf,
                       (scores >= scores.topk(min(k, LARGE)).values[:, -1:]) & (scores > -torch.inf))  # fmt: skip
    each = torch.tensor([[k], [1]])
    assert torch.equal(apply_top_k(scores, each, max(k, 1))[0], apply_top_k(scores, k)[0])
    assert torch.equal(
        apply_top_p(scores, torch.tensor([[p], [0.3]], dtype=torch.float64))[0], apply_top_p(scores, p)[0]
    )


class Only:
    """A guide that allows some tokens, then others."""

    def __init__(self, *allowed: set[int]) -> None:
        self.allowed, self.at = allowed, 0

    def mask(self) -> Tensor:
        return torch.tensor([token in self.allowed[self.at] for token in range(VOCAB)])

    def accept(self, token: int) -> None:
        assert token in self.allowed[self.at]
        self.at += 1

    @property
    def over(self) -> bool:
        return self.at == len(self.allowed)


@pytest.mark.quick
def test_a_guide_binds_its_own_row_only() -> None:
    scores = torch.randn(4, VOCAB, generator=torch.Generator().manual_seed(1))
    ways = [Generation(max_new_tokens=3), Generation(max_new_tokens=3, do_sample=True, seed=3)] * 2
    allowed = [{1, 2}, {7}, {4, 8, 9}]
    sampler, free = BatchSampler(VOCAB), BatchSampler(VOCAB)
    states = [sampler.add(way, [0], 3, Only(*allowed) if row < 2 else None) for row, way in enumerate(ways)]
    free_states = [free.add(way, [0], 3) for way in ways]
    for step in range(3):
        got = sampler.sample(states, scores).tokens.tolist()
        assert got[0] in allowed[step] and got[1] in allowed[step]
        without = free.sample(free_states, scores).tokens.tolist()
        assert got[2:] == without[2:]  # the neighbours get what they get without it


@pytest.mark.quick
def test_where_rules_leave_nothing_the_guide_is_obeyed() -> None:
    """The guide knows only the end, the settings forbid it: a token the guide does not know would break it."""
    way = Generation(max_new_tokens=3, min_new_tokens=2, eos_token_id=5)
    sampler = BatchSampler(VOCAB)
    guided = sampler.add(way, [0], 0, Only({5}))
    assert sampler.sample([guided], torch.randn(1, VOCAB)).tokens.tolist() == [5]
    certain = torch.zeros(1, VOCAB).index_fill(1, torch.tensor([5]), 9.0)
    assert sampler.sample([sampler.add(way, [0], 0)], certain).tokens.tolist() != [5]  # control: no guide


@pytest.mark.quick
def test_a_shorter_guide_forbids_what_it_does_not_know() -> None:
    """A vocabulary padded to a round number has ids that no tokenizer spells."""
    sampler, guide = BatchSampler(VOCAB + 3), Only({1})
    state = sampler.add(Generation(max_new_tokens=1), [0], 0, guide)
    scores = torch.zeros(1, VOCAB + 3).index_fill(1, torch.tensor([VOCAB + 1]), 9.0)
    assert sampler.sample([state], scores).tokens.tolist() == [1]


@pytest.mark.quick
def test_the_most_probable_tokens_are_told_where_asked_for() -> None:
    scores = torch.tensor([[0.0, 3.0, 1.0, 2.0]]).repeat(2, 1)
    sampler = BatchSampler(4)
    states = [sampler.add(Generation(logprobs=2), [0], 0), sampler.add(Generation(), [0], 0)]
    first, second = sampler.sample(states, scores).on_host
    own = scores[0].log_softmax(-1).tolist()
    assert first.token == 1 and list(first.top or {}) == [1, 3] and second.top is None
    assert first.logprob == pytest.approx(own[1]) and (first.top or {})[3] == pytest.approx(own[3])


@pytest.mark.quick
def test_beam_search_is_refused() -> None:
    with pytest.raises(UserError, match="beam search"):
        BatchSampler(4).add(Generation(num_beams=2), [0], 0)

"""Sampling: the right frequencies, the right sets to choose from, and noise that depends on nothing but its counter."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import chisquare, kstest
from torch import Tensor

from anyformer.generation import Generation, generate
from anyformer.generation.logits import (
    TokenHistory,
    apply_min_p,
    apply_top_k,
    apply_top_p,
    ban_repeated_ngrams,
    ban_tokens,
    force_tokens,
    logits_warpers,
    penalize_frequency,
    penalize_repetition,
)
from anyformer.generation.noise import draw, gumbel, mix_bits, row_seeds, uniform
from tests.generation.nets import POSITIONS, build, decoder, ids, padded, rows

DRAWS = 100_000
LOGITS = torch.tensor([[1.2, -0.3, 0.4, 2.0, -1.5, 0.0, 0.9, -0.7, 1.1, -2.2, 0.3, 0.6]])
TEXT = TokenHistory(torch.zeros(1, 1, dtype=torch.long), None, 0, False)


def narrowed(settings: Generation, logits: Tensor = LOGITS) -> Tensor:
    for apply in logits_warpers(settings):
        logits = apply(logits, TEXT)
    return logits


def p_value(tokens: Tensor, logits: Tensor) -> float:
    """How likely such frequencies are under the softmax; 0 where a token came that cannot."""
    expected = logits.double().softmax(-1)[0]
    seen = tokens.bincount(minlength=expected.shape[0]).double()
    if seen[expected == 0].any():
        return 0.0
    kept = expected > 0
    return float(chisquare(seen[kept].numpy(), (expected[kept] * seen.sum()).numpy()).pvalue)


def by_seed(logits: Tensor) -> Tensor:
    """One draw a seed."""
    return torch.cat([draw(logits.expand(10_000, -1), torch.arange(a, a + 10_000), 3) for a in range(0, DRAWS, 10_000)])


def by_step(logits: Tensor) -> Tensor:
    """One draw a step: 1,000 seeds of 100 steps."""
    return torch.cat([draw(logits.expand(1_000, -1), torch.arange(1_000) + 7, step) for step in range(DRAWS // 1_000)])


CHOICES = {
    "softmax": Generation(do_sample=True),
    "temperature": Generation(do_sample=True, temperature=0.6),
    "hot": Generation(do_sample=True, temperature=2.0),
    "top-k": Generation(do_sample=True, top_k=4),
    "top-p": Generation(do_sample=True, top_p=0.7),
    "min-p": Generation(do_sample=True, min_p=0.2),
    "all": Generation(do_sample=True, temperature=1.4, top_k=8, top_p=0.85, min_p=0.1),
}


@pytest.mark.quick
@pytest.mark.parametrize("draws", [by_seed, by_step])
@pytest.mark.parametrize("settings", CHOICES.values(), ids=CHOICES)
def test_frequencies_pass_a_chi_square_test(settings: Generation, draws: object) -> None:
    logits = narrowed(settings)
    tokens = draws(logits)  # type: ignore[operator]
    assert p_value(tokens, logits) > 1e-3
    assert p_value(tokens, logits * 1.05) < 1e-6  # control: another temperature by a twentieth is noticed


@pytest.mark.quick
def test_control_a_weak_counter_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anyformer.generation.noise.mix_bits", lambda x: x)
    assert p_value(by_seed(LOGITS), LOGITS) < 1e-6


def test_text_comes_with_the_frequencies_of_the_model() -> None:
    """Through the whole of generate: 20,000 texts of one token, then of the second given the first."""
    net = build(decoder(*POSITIONS["rope"], vocab=6))
    prompt = ids(1, 3, vocab=6)
    settings = Generation(max_new_tokens=2, do_sample=True, num_return_sequences=20_000, seed=5)
    texts = generate(net, prompt, settings=settings).new
    with torch.no_grad():
        assert p_value(texts[:, 0], net(prompt).logits[:, -1]) > 1e-3
        common = int(texts[:, 0].mode().values)
        after = net(torch.cat([prompt, torch.tensor([[common]])], 1)).logits[:, -1]
    assert p_value(texts[texts[:, 0] == common, 1], after) > 1e-3
    assert p_value(texts[texts[:, 0] != common, 1], after) < 1e-6  # control: after other words, other frequencies


@pytest.mark.quick
def test_the_uniform_numbers_are_uniform_and_steps_do_not_repeat_each_other() -> None:
    numbers = torch.stack([uniform(torch.arange(20), step, 500) for step in range(20)])  # (steps, seeds, tokens)
    assert numbers.min() > 0 and numbers.max() < 1
    assert kstest(numbers.flatten().numpy(), "uniform").pvalue > 1e-3
    assert len(numbers.unique()) == numbers.numel()
    for axis in range(3):  # neighbours along seed, step or token have nothing to do with each other
        a = numbers.movedim(axis, 0)
        together = torch.corrcoef(torch.stack([a[:-1].flatten(), a[1:].flatten()]))[0, 1]
        assert abs(together) < 0.02
    assert torch.isfinite(gumbel(torch.arange(20), 0, 500)).all()


@pytest.mark.quick
def test_the_noise_is_the_published_hash() -> None:
    """SplitMix64 from state 0 begins so (the reference program of its authors); the same on every device."""
    golden = 0x9E3779B97F4A7C15 - 2**64
    state = torch.arange(1, 4) * golden
    got = [int(value) % 2**64 for value in mix_bits(state)]
    assert got == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


def test_a_seeded_request_does_not_depend_on_its_neighbours() -> None:
    for position in ("learned", "rope", "alibi"):
        net = build(decoder(*POSITIONS[position]))
        mine = ids(1, 5, seed=3)
        settings = Generation(max_new_tokens=12, do_sample=True, temperature=1.2, top_p=0.95, seed=42)
        alone = rows(generate(net, mine, settings=settings))[0]
        others = [ids(1, 1 + i % 9, seed=100 + i) for i in range(31)]
        for place in (0, 7, 31):
            crowd = [*others[:place], mine, *others[place:]]
            assert rows(generate(net, *padded(crowd, "left"), settings=settings))[place] == alone
        seeds = tuple(range(place)) + (42,)
        own = Generation(max_new_tokens=12, do_sample=True, temperature=1.2, top_p=0.95, seed=seeds)
        crowd = [*others[:31], mine]
        assert rows(generate(net, *padded(crowd, "right"), settings=own))[31] == alone
        # Control: another seed gives another text.
        other = Generation(max_new_tokens=12, do_sample=True, temperature=1.2, top_p=0.95, seed=43)
        assert rows(generate(net, mine, settings=other))[0] != alone


@pytest.mark.quick
def test_seeds_of_several_texts() -> None:
    seeds = row_seeds(9, 2, 3, torch.device("cpu"))
    assert seeds[0] == seeds[3] == 9 and seeds[:3].tolist() == seeds[3:].tolist() and len(seeds.unique()) == 3
    torch.manual_seed(0)
    first = row_seeds(None, 4, 1, torch.device("cpu"))
    torch.manual_seed(0)
    assert torch.equal(first, row_seeds(None, 4, 1, torch.device("cpu"))) and len(first.unique()) == 4
    assert not torch.equal(first, row_seeds(None, 4, 1, torch.device("cpu")))


def test_texts_of_one_prompt_differ_and_the_first_is_the_single_one() -> None:
    net = build(decoder(*POSITIONS["rope"]))
    one = Generation(max_new_tokens=8, do_sample=True, seed=4)
    many = Generation(max_new_tokens=8, do_sample=True, seed=4, num_return_sequences=5)
    tokens, mask = padded([ids(1, 4), ids(1, 2, seed=1)], "left")
    got = rows(generate(net, tokens, mask, settings=many))
    assert got[::5] == rows(generate(net, tokens, mask, settings=one))
    assert len({tuple(row) for row in got[:5]}) > 2


@pytest.mark.parametrize("temperature", [0.0, 1e-40, 1e-6, 1e-3])
def test_a_temperature_near_zero_is_greedy(temperature: float) -> None:
    for seed in range(3):
        net = build(decoder(*POSITIONS["alibi"]), seed=seed)
        tokens = ids(4, 5, seed=seed)
        cold = Generation(max_new_tokens=10, do_sample=True, temperature=temperature, seed=1)
        assert torch.equal(generate(net, tokens, settings=cold).ids,
                           generate(net, tokens, settings=Generation(max_new_tokens=10)).ids)  # fmt: skip
        warm = Generation(max_new_tokens=10, do_sample=True, temperature=1.0, seed=1)  # control
        assert not torch.equal(generate(net, tokens, settings=warm).ids, generate(net, tokens, settings=cold).ids)


@pytest.mark.quick
@pytest.mark.parametrize("p", [0.01, 0.3, 0.5, 0.9, 0.999, 1.0])
def test_top_p_keeps_the_smallest_set_that_reaches_p(p: float) -> None:
    logits = torch.randn(300, 40, generator=torch.Generator().manual_seed(0)) * 2
    shares = logits.double().softmax(-1)
    kept = apply_top_p(logits, p) > -torch.inf
    mass = (shares * kept).sum(-1)
    assert (mass >= p - 1e-12).all()
    least = shares.masked_fill(~kept, 2.0).amin(-1)
    assert ((mass - least) < p).all()  # without its least probable member it does not reach p
    assert (shares.masked_fill(kept, 0.0).amax(-1) <= least).all()  # and nothing left out is more probable
    larger = apply_top_k(logits, int(kept.sum(-1).max()) + 1) > -torch.inf  # control: one token more is not minimal
    if p < 1.0:
        mass, least = (shares * larger).sum(-1), shares.masked_fill(~larger, 2.0).amin(-1)
        assert not ((mass - least) < p).all()


@pytest.mark.quick
def test_filters_equal_transformers_on_random_scores() -> None:
    from transformers.generation import logits_process as theirs

    scores = torch.randn(20, 40, generator=torch.Generator().manual_seed(1)) * 3
    said = ids(20, 30, seed=2, vocab=40)
    text = TokenHistory(said, None, 3, False)
    for ours, there in (
        (apply_top_k(scores, 7), theirs.TopKLogitsWarper(7)),
        (apply_top_p(scores, 0.8), theirs.TopPLogitsWarper(0.8)),
        (apply_min_p(scores, 0.1), theirs.MinPLogitsWarper(0.1)),
        (penalize_repetition(scores, text, 1.7), theirs.RepetitionPenaltyLogitsProcessor(1.7)),
        (ban_repeated_ngrams(scores, text, 2), theirs.NoRepeatNGramLogitsProcessor(2)),
        (ban_tokens(scores, torch.tensor([3, 5])), theirs.SuppressTokensLogitsProcessor([3, 5])),
        (force_tokens(scores, torch.tensor([3])), theirs.ForcedEOSTokenLogitsProcessor(31, 3)),
    ):
        want = there(said, scores)
        assert torch.allclose(ours, want) and not torch.equal(ours, scores), there


@pytest.mark.quick
def test_padding_was_not_said() -> None:
    scores, real = torch.ones(1, 4), torch.tensor([[False, False, True]])
    text = TokenHistory(torch.tensor([[2, 2, 1]]), real, 0, False)
    assert penalize_repetition(scores, text, 2.0).tolist() == [[1.0, 0.5, 1.0, 1.0]]
    assert ban_repeated_ngrams(scores, text, 1).tolist() == [[1.0, float("-inf"), 1.0, 1.0]]
    assert penalize_repetition(scores, TokenHistory(text.ids, None, 0, False), 2.0)[0, 2] == 0.5  # control


def test_words_that_came_lose_by_presence_and_frequency() -> None:
    """Against the formula, written out token by token: c(t) is how often t was written, the prompt left out."""
    scores = torch.randn(2, 6, dtype=torch.float64)
    text = TokenHistory(torch.tensor([[0, 1, 1, 3, 3, 3], [5, 5, 2, 2, 4, 2]]), None, 4, False)
    found = penalize_frequency(scores, text, 0.7, 0.2)
    for row in range(2):
        said = text.ids[row, 2:].tolist()
        for token in range(6):
            times = said.count(token)
            assert abs(float(found[row, token] - (scores[row, token] - 0.7 * (times > 0) - 0.2 * times))) < 1e-12
    assert torch.equal(
        penalize_frequency(scores, TokenHistory(text.ids, None, 0, False), 0.7, 0.2), scores
    )  # no output

"""Objectives that make two texts of one: what is read and what is written, against T5's paper and plain loops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chi2
from torch import Tensor

import anyformer
from anyformer import UserError
from anyformer.data.datasets.blocks import Blocks, SourceBlocks
from anyformer.objectives import Batch, Deshuffle, DropTokens, Mass, Prefix, Spans
from anyformer.objectives.denoising import Denoising
from anyformer.objectives.draw import EVALUATION, Draw
from anyformer.objectives.token_facts import TokenFacts

VOCAB, PAD, EOS, START, MASK = 400, 0, 1, 2, 3
SENTINELS = tuple(range(399, 299, -1))  # T5 numbers them downwards
FIRST_WORD = 4
FACTS = TokenFacts(
    ordinary=np.arange(VOCAB) >= FIRST_WORD, begins_word=np.ones(VOCAB, bool), mask=MASK, pad=PAD, start=START, eos=EOS,
    sentinels=SENTINELS,
)  # fmt: skip
EVERY: list[Denoising] = [
    Spans(), Spans(rate=0.4, mean_length=1.5), Deshuffle(), DropTokens(), Mass(), Mass(span=True, rate=0.5),
    Prefix(encoder=True),
]  # fmt: skip
each_objective = pytest.mark.parametrize("objective", EVERY, ids=repr)


class Source(SourceBlocks):
    """Blocks of running text without a tokenizer, whose special tokens are the ones above."""

    facts = FACTS  # type: ignore[assignment]


def source_of(tokens: int = 330, length: int = 32) -> Source:
    text = np.random.default_rng(0).integers(FIRST_WORD, 300, tokens)
    return Source(text, length, vocab=VOCAB, start=START)


def rewrite(objective: Denoising, text: np.ndarray, seed: int = 0) -> tuple[list[int], list[int]]:
    read, written = objective.rewrite(text, FACTS, np.random.default_rng(seed))
    return read.tolist(), written.tolist()


# ---------------------------------------------------------------- spans


def test_w09_spans_of_500_tokens_are_those_of_the_paper() -> None:
    """75 tokens lost in 25 spans of 3; 450 are read and 100 written, before end marks."""
    text = np.random.default_rng(0).integers(FIRST_WORD, 300, 500)
    for seed in range(20):
        read, written = rewrite(Spans(), text, seed)
        marks = [token for token in read if token in SENTINELS]
        assert (len(read), len(written), len(marks)) == (450, 100, 25)
        assert len(written) - len(marks) == 75
        assert marks == [token for token in written if token in SENTINELS] == list(SENTINELS[:25])  # in their order
    assert rewrite(Spans(mean_length=2.0), text)[1] != written  # control: other spans are noticed
    assert len(rewrite(Spans(mean_length=2.0), text)[0]) == 425 + 38


def rebuild(read: Sequence[int], written: Sequence[int]) -> list[int]:
    """The text again: every sentinel that is read gives way to what is written behind it."""
    spans: dict[int, list[int]] = {}
    for token in written:
        if token in SENTINELS:
            last = spans.setdefault(token, [])
        else:
            last.append(token)
    return [word for token in read for word in (spans[token] if token in SENTINELS else [token])]


def test_what_is_read_and_written_rebuilds_the_text() -> None:
    random = np.random.default_rng(1)
    broken = 0
    for case in range(10_000):
        text = random.integers(FIRST_WORD, 300, random.integers(1, 120))
        objective = Spans(rate=float(random.uniform(0.05, 0.6)), mean_length=float(random.uniform(1.5, 6)))
        read, written = rewrite(objective, text, case)
        assert rebuild(read, written) == text.tolist()
        swapped = [{SENTINELS[0]: SENTINELS[1], SENTINELS[1]: SENTINELS[0]}.get(token, token) for token in written]
        broken += SENTINELS[1] in written and rebuild(read, swapped) != text.tolist()
    assert broken > 5_000  # control: two sentinels in the wrong order are noticed


def test_spans_beyond_the_sentinels_are_refused_with_a_length_that_fits() -> None:
    text = np.arange(FIRST_WORD, 284)
    with pytest.raises(
        UserError, match="140 spans of a text need as many sentinels, and the tokenizer has 100"
    ) as said:
        rewrite(Spans(rate=0.5, mean_length=1.0), text)
    assert "objective.mean_length to 2" in str(said.value)
    assert rebuild(*rewrite(Spans(rate=0.5, mean_length=2.0), text)) == text.tolist()


# ---------------------------------------------------------------- every way as likely


def is_uniform(outcomes: Sequence[Any], ways: int) -> bool:
    """Whether draws may come from so many equally likely ways; a false alarm comes once in ten thousand."""
    counts = Counter(outcomes)
    assert len(counts) <= ways, counts
    expected = len(outcomes) / ways
    found = sum((count - expected) ** 2 / expected for count in counts.values()) + (ways - len(counts)) * expected
    return bool(found < chi2.ppf(1 - 1e-4, ways - 1))


TEXT = np.arange(FIRST_WORD, FIRST_WORD + 8)


def read_of(objective: Denoising, text: np.ndarray = TEXT) -> Callable[[int], Any]:
    return lambda seed: tuple(rewrite(objective, text, seed)[0])


def written_of(objective: Denoising, text: np.ndarray = TEXT) -> Callable[[int], Any]:
    return lambda seed: tuple(rewrite(objective, text, seed)[1])


WAYS: dict[str, tuple[Callable[[int], Any], int]] = {
    # 4 tokens lost in 2 spans: 3 ways to cut those, 3 to cut the 4 that stay
    "spans": (read_of(Spans(rate=0.5, mean_length=2.0)), 9),
    "deshuffle": (read_of(Deshuffle(), TEXT[:4]), 24),
    "drop": (written_of(DropTokens(rate=0.25)), 28),
    "mass": (read_of(Mass(rate=0.25)), 28),
    "mass, one run": (written_of(Mass(rate=0.5, span=True)), 5),
    "prefix": (lambda seed: len(read_of(Prefix(encoder=True))(seed)), 7),
}


@pytest.mark.parametrize("name", WAYS)
def test_every_way_to_corrupt_a_text_is_as_likely(name: str) -> None:
    draw, ways = WAYS[name]
    outcomes = [draw(seed) for seed in range(6_000)]
    assert len(set(outcomes)) == ways
    assert is_uniform(outcomes, ways)
    # Control: one outcome in twenty is another one; the same measurement notices.
    bent = [outcomes[0] if number % 20 == 0 else outcome for number, outcome in enumerate(outcomes)]
    assert not is_uniform(bent, ways)


def test_lost_tokens_are_a_share_of_the_text() -> None:
    text = np.arange(FIRST_WORD, 204)
    for objective in (DropTokens(), Mass(), Spans()):
        read, _ = rewrite(objective, text)
        assert sum(token >= FIRST_WORD and token < 300 for token in read) == 170
    assert len(rewrite(DropTokens(rate=0.3), text)[1]) == 60


# ---------------------------------------------------------------- batches


@each_objective
def test_batches_have_one_shape_and_a_row_is_its_own(objective: Denoising) -> None:
    source, draw = source_of(), Draw(3, 1)
    batches = [objective.corrupt(source.batch(rows, draw), draw, source) for rows in ([0, 1, 2], [5, 0, 9], [10, 7, 1])]
    assert len({tuple(tensor.shape for tensor in (*batch.inputs, batch.targets)) for batch in batches}) == 1
    first, second, _ = batches
    assert torch.equal(first.inputs[0][0], second.inputs[0][1]) and torch.equal(first.targets[0], second.targets[1])
    other = objective.corrupt(source.batch([0, 1, 2], draw), Draw(3, 2), source)
    assert not torch.equal(first.inputs[0], other.inputs[0])  # control: another epoch corrupts otherwise
    judged = [objective.corrupt(source.batch([0, 10]), EVALUATION, source) for _ in range(2)]
    assert torch.equal(judged[0].inputs[0], judged[1].inputs[0])
    assert int(judged[0].targets[1].max()) > 0  # the last block is padded, and asked for all the same


@each_objective
def test_a_decoder_is_given_what_it_writes_one_token_late_and_an_end(objective: Denoising) -> None:
    source = source_of()
    batch = objective.corrupt(source.batch([0, 1, 10]), EVALUATION, source)
    before, targets = batch.inputs[1], batch.targets
    assert (before[:, 0] == START).all()
    for given, asked in zip(before, targets, strict=True):
        count = int((asked >= 0).sum())
        assert asked[count - 1] == EOS and torch.equal(given[1:count], asked[: count - 1])
        assert (asked[count:] == -100).all() and (given[count + 1 :] == PAD).all()
    assert objective.weight(batch) == int((targets >= 0).sum())


# ---------------------------------------------------------------- the loss


def tiny(name: str = "t5-small-tiny") -> Any:
    """A network of this vocabulary in double precision."""
    spec = anyformer.preset(name)
    spec = spec.replace(
        encoder=spec.encoder.replace(embed=spec.encoder.embed.replace(vocab=VOCAB)),
        decoder=spec.decoder.replace(embed=spec.decoder.embed.replace(vocab=VOCAB)),
        head=anyformer.LM(tied=True),
    )
    return spec.build(seed=0).double()


def loss_by_loop(model: Any, batch: Batch) -> Tensor:
    """Each row by itself without padding, each token by itself."""
    total = torch.zeros((), dtype=torch.float64)
    masks = batch.named.get("source_mask", torch.ones_like(batch.inputs[0], dtype=torch.bool))
    for read, mask, before, targets in zip(batch.inputs[0], masks, batch.inputs[1], batch.targets, strict=True):
        count = int((targets != -100).sum())
        logits = model(read[mask][None], before[None, :count]).logits[0]
        for place in range(count):
            total = total - logits[place].log_softmax(-1)[targets[place]]
    return total


@each_objective
@pytest.mark.parametrize("name", ["t5-small-tiny", "bart-base-tiny"])
def test_loss_and_gradients_equal_a_plain_loop(objective: Denoising, name: str) -> None:
    model, source = tiny(name), source_of()
    batch = objective.corrupt(source.batch([0, 3, 10]), EVALUATION, source)
    found, wanted = objective.loss(model, batch), loss_by_loop(model, batch)
    assert torch.allclose(found, wanted, rtol=1e-9)
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    for mine, theirs in zip(*(torch.autograd.grad(loss, weights) for loss in (found, wanted)), strict=True):
        assert (mine - theirs).abs().max() <= 1e-9 * max(1.0, float(theirs.abs().max()))
    if "source_mask" in batch.named:  # control: padding that is read is noticed
        seen = Batch(batch.inputs, batch.targets, batch.rows)
        assert (objective.loss(model, seen) - wanted).abs() > 1e-6 * wanted


@each_objective
def test_an_untrained_model_is_at_chance(objective: Denoising) -> None:
    model, source = tiny("bart-base-tiny").float(), source_of()
    batch = objective.corrupt(source.batch(range(len(source))), EVALUATION, source)
    loss = objective.loss(model, batch).item() / objective.weight(batch)
    assert abs(loss - np.log(VOCAB)) < 0.1, loss


def test_blocks_of_another_kind_have_no_start() -> None:
    plain = Blocks(np.arange(40) % 30 + FIRST_WORD, 10, vocab=VOCAB)
    assert plain.facts.start is None and plain.facts.start_id == plain.facts.pad
    with pytest.raises(UserError, match="no mask token"):
        _ = plain.facts.gap_id

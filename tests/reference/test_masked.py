"""Masked words: what is hidden and how often, the loss against transformers and against a loop, a toy it must learn."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import anyformer
from anyformer import preset
from anyformer.data.datasets.blocks import Blocks, token_facts
from anyformer.data.tokenizers.tokenizer import Tokenizer, train_tokenizer
from anyformer.objectives import Batch, Masked
from anyformer.objectives.draw import EVALUATION, Draw
from anyformer.objectives.objective import IGNORED
from anyformer.objectives.text_pairs import make_pairs
from tests.families.parity import quietly

SPECIAL = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
VOCAB = 500


def text_blocks(tokens: int = 60_000, length: int = 128, seed: int = 0) -> Blocks:
    """Random words of a WordPiece vocabulary, in blocks."""
    letters = np.random.default_rng(seed)
    words = ["".join(letters.choice(list("abcdefgh"), size)) for size in letters.integers(1, 7, 400)]
    tokenizer = train_tokenizer([" ".join(words)], "wordpiece", VOCAB, special=SPECIAL)
    ids = letters.choice(token_facts(tokenizer, tokenizer.size, 0).drawable, tokens)
    return Blocks(ids, length, vocab=tokenizer.size, tokenizer=tokenizer)


def hidden(blocks: Blocks, objective: Masked, draw: Draw) -> tuple[Batch, Batch]:
    """All rows before and after."""
    batch = blocks.batch(range(len(blocks)), draw)
    return batch, objective.corrupt(batch, draw, blocks)


# ---------------------------------------------------------------- what is hidden


def chi_square(counts: list[int], shares: list[float]) -> float:
    total = sum(counts)
    return sum((count - total * share) ** 2 / (total * share) for count, share in zip(counts, shares, strict=True))


def treated(blocks: Blocks, objective: Masked, epochs: int) -> tuple[list[int], int]:
    """How many of the chosen tokens became the mask, another or stayed; and how many could have been chosen."""
    counts, tokens = np.zeros(3, int), 0
    for epoch in range(epochs):
        before, after = hidden(blocks, objective, Draw(1, epoch))
        chosen = after.targets != IGNORED
        tokens += int((before.targets != IGNORED).sum())
        given, truth = after.inputs[0][chosen], after.targets[chosen]
        masked, same = given == blocks.facts.mask_id(), given == truth
        counts += [int(masked.sum()), int((~masked & ~same).sum()), int(same.sum())]
        assert torch.equal(after.inputs[0][~chosen], before.inputs[0][~chosen])
    return counts.tolist(), tokens


@pytest.mark.parametrize("whole_words", [False, True])
def test_of_a_million_tokens_fifteen_percent_are_chosen_and_treated_as_told(whole_words: bool) -> None:
    blocks = text_blocks(200_000)
    counts, tokens = treated(blocks, Masked(whole_words=whole_words), 5)
    assert tokens >= 980_000
    assert abs(sum(counts) / tokens - 0.15) < 0.001
    kinds = len(blocks.facts.drawable)
    shares = [0.8, 0.1 * (1 - 1 / kinds), 0.1 * (1 + 1 / kinds)]  # a random token may be the same by chance
    assert all(abs(count / sum(counts) - share) < 0.001 for count, share in zip(counts, shares, strict=True))
    assert chi_square(counts, shares) < 13.8  # two degrees of freedom: one in a thousand
    control, _ = treated(blocks, Masked(whole_words=whole_words, keep=0.11), 5)
    assert chi_square(control, shares) > 50


def test_every_text_token_is_chosen_alike_and_others_never() -> None:
    """Places of a row, by chi-square; begin, end and padding are never hidden, and a row has at most `most` targets."""
    blocks, objective = text_blocks(40_000), Masked()
    places = np.zeros(128)
    for epoch in range(60):
        _, after = hidden(blocks, objective, Draw(2, epoch))
        chosen = after.targets != IGNORED
        assert int(chosen.sum(1).max()) <= (after.most_targets or 0)
        special = {blocks.facts.cls, blocks.facts.sep, blocks.facts.pad}
        assert not special & set(after.targets[chosen].tolist())
        assert not special & set(after.inputs[0][chosen].tolist())
        places += chosen.sum(0).numpy()
    assert places[0] == places[-1] == 0
    inside = places[1:-1]
    assert ((inside - inside.mean()) ** 2 / inside.mean()).sum() < 125 + 3.3 * math.sqrt(2 * 125)


def test_masks_differ_between_epochs_repeat_with_the_seed_and_do_not_depend_on_the_batch() -> None:
    blocks = text_blocks(4_000)
    first, again, other = (hidden(blocks, Masked(), Draw(5, epoch))[1].targets for epoch in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first, hidden(blocks, Masked(), Draw(6, 0))[1].targets)
    static = [hidden(blocks, Masked(static=True), Draw(5, epoch))[1] for epoch in (0, 1)]
    assert torch.equal(static[0].targets, static[1].targets) and torch.equal(static[0].inputs[0], static[1].inputs[0])
    alone = Masked().corrupt(blocks.batch([3], Draw(5, 0)), Draw(5, 0), blocks)
    assert torch.equal(alone.targets[0], first[3])
    judged = [Masked().corrupt(blocks.batch([3]), EVALUATION, blocks).targets for _ in range(2)]
    assert torch.equal(*judged)


# ---------------------------------------------------------------- whole words

SEEN = "The café's unbelievable cats ran home, naïvely."
SENTENCE = SEEN.replace("unbelievable", "cable")
WORDS = ["The", "café", "'", "s", "cable", "cats", "ran", "home", ",", "naïvely", "."]


def split(tokenizer: Tokenizer, text: str) -> list[str]:
    """The text cut where a new word begins."""
    ids = np.array(tokenizer.encode(text, special=False))
    numbers = token_facts(tokenizer, tokenizer.size, 0).word_numbers(ids)
    return [tokenizer.decode(ids[numbers == number].tolist()).strip() for number in np.unique(numbers)]


@pytest.mark.parametrize("kind", ["bpe", "char-bpe", "wordpiece", "unigram", "char", "byte"])
def test_pieces_of_a_word_belong_together_in_every_kind_of_tokenizer(kind: Any) -> None:
    special = SPECIAL if kind == "wordpiece" else None
    size = {"bpe": 270, "byte": 270, "wordpiece": 330}.get(kind, 60)
    tokenizer = train_tokenizer([SEEN, "a cat sat on the mat, home and away"], kind, size, special=special)
    parts = [part for part in split(tokenizer, SENTENCE) if part]
    assert len(tokenizer.encode(SENTENCE, special=False)) > len(WORDS)  # else no word is cut
    if kind == "wordpiece":
        assert parts == WORDS  # BERT's splits punctuation off
    else:
        assert "".join(parts).replace(" ", "") == "".join(WORDS)
        for word in ("cable", "cats", "ran", "home", "café", "naïvely"):
            assert word in parts, parts
    if kind in ("bpe", "byte", "char"):  # a line ends a word
        assert [part for part in split(tokenizer, "cats\nran") if part] == ["cats", "ran"]
    blocks = Blocks(np.array(tokenizer.encode(SENTENCE * 30, special=False)), 64, vocab=tokenizer.size,
                    tokenizer=tokenizer)  # fmt: skip
    facts = blocks.facts if blocks.facts.mask is not None else replace(blocks.facts, mask=0)
    objective, random = Masked(whole_words=True, rate=0.4), np.random.default_rng(0)
    split_words = 0
    for row in blocks.batch(range(len(blocks))).inputs[0].numpy():
        chosen = objective.choose(row, row, facts, random)
        numbers = facts.word_numbers(row)
        ordinary = facts.ordinary[row]
        for number in np.unique(numbers[chosen]):
            assert set(np.flatnonzero((numbers == number) & ordinary)) <= set(chosen.tolist())
        tokens = objective.replace(whole_words=False).choose(row, row, facts, random)
        split_words += any(
            set(np.flatnonzero((numbers == number) & ordinary)) - set(tokens.tolist()) for number in numbers[tokens]
        )
    assert split_words  # control: single tokens cut words


# ---------------------------------------------------------------- the loss


def test_w20_two_masked_words_are_asked_for_and_no_others() -> None:
    """[The_][cat_][MASK][on_][MASK][mat_]: sat_ at 3, the_ at 5, and the loss is that of those two alone."""
    words = ["The_", "cat_", "sat_", "on_", "the_", "mat_", "[MASK]"]
    model = anyformer.Model(
        embed=anyformer.Tokens(vocab=7), stack=preset("encoder-mini").stack.replace(width=32, depth=1),  # type: ignore[attr-defined]
        head=anyformer.LM(),
    ).build(seed=0).eval()  # fmt: skip
    tokens = torch.tensor([[words.index(word) for word in ("The_", "cat_", "[MASK]", "on_", "[MASK]", "mat_")]])
    targets = torch.tensor([[IGNORED, IGNORED, words.index("sat_"), IGNORED, words.index("the_"), IGNORED]])
    batch = Batch((tokens,), targets, torch.zeros(1, dtype=torch.long), most_targets=2)
    objective = Masked()
    assert objective.weight(batch) == 2
    shares = model(tokens).logits[0].log_softmax(-1)
    wanted = -(shares[2, words.index("sat_")] + shares[4, words.index("the_")])
    assert abs((objective.loss(model, batch) - wanted).item()) < 1e-5
    hidden = model.before_head(tokens).hidden.detach().requires_grad_()
    model.head(hidden, None, model.table()).logits.log_softmax(-1)[0, [2, 4]].sum().backward()
    assert [place for place in range(6) if hidden.grad is not None and hidden.grad[0, place].any()] == [2, 4]


def loop_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of the chosen tokens, written out."""
    total = logits.new_zeros(())
    for row in range(targets.shape[0]):
        for place in range(targets.shape[1]):
            if targets[row, place] != IGNORED:
                scores = logits[row, place]
                total = total + torch.log(torch.exp(scores).sum()) - scores[targets[row, place]]
    return total


@pytest.mark.parametrize("name", ["bert-base-tiny", "albert-base-tiny"])
def test_gradients_equal_those_of_a_loop_in_double_precision(name: str) -> None:
    blocks = text_blocks(2_000, 24)
    spec = fitted(name, blocks.vocab)
    _, batch = hidden(blocks, Masked(), Draw(0, 0))
    batch = rows_of(batch, 4)
    model = spec.build(seed=1, dtype=torch.float64)
    Masked().loss(model, batch).backward()
    ours = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    loop_loss(model(*batch.inputs).logits, batch.targets).backward()
    for path, p in model.named_parameters():
        if p.grad is not None:
            assert (ours[path] - p.grad).abs().max() <= 1e-9 * max(1.0, float(p.grad.abs().max())), path
    control = batch.targets.roll(1, 1)
    assert abs((loop_loss(model(*batch.inputs).logits, control) - Masked().loss(model, batch)).item()) > 1e-3


def rows_of(batch: Batch, count: int) -> Batch:
    """The first rows of a batch."""
    named = {name: value[:count] for name, value in batch.named.items()}
    pair = None if batch.pair is None else batch.pair[:count]
    return replace(batch, inputs=(batch.inputs[0][:count],), targets=batch.targets[:count], rows=batch.rows[:count],
                   named=named, pair=pair)  # fmt: skip


def fitted(name: str, vocab: int, objective: Masked | None = None) -> Any:
    """A preset as the task fits it."""
    from anyformer.data.sizes import Sizes
    from anyformer.tasks import find

    spec = find("masked").fit_network(preset(name), name, Sizes(parts=["text"], vocab=vocab, length=128))
    return find("masked").extend_network(spec, name, objective or Masked())


@pytest.mark.parametrize("name", ["bert-base-tiny", "roberta-base-tiny", "albert-base-tiny", "distilbert-tiny",
                                  "electra-small-tiny"])  # fmt: skip
def test_the_loss_equals_that_of_transformers(name: str, tmp_path: Path) -> None:
    from transformers import AutoModelForMaskedLM

    from anyformer.checkpoints.folder import save_foreign

    blocks = text_blocks(4_000)
    model = fitted(name, blocks.vocab).build(seed=0).eval()
    save_foreign(tmp_path / "theirs", model.spec, model)
    with quietly():
        theirs, info = AutoModelForMaskedLM.from_pretrained(tmp_path / "theirs", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    batch = hidden(blocks, Masked(), Draw(0, 0))[1]
    mask = batch.named.get("mask", torch.ones_like(batch.inputs[0], dtype=torch.bool))
    with torch.no_grad():
        wanted = theirs.eval()(input_ids=batch.inputs[0], attention_mask=mask.long(), labels=batch.targets)
        ours = Masked().loss(model, batch) / Masked().weight(batch)
        logits = model(*batch.inputs, **batch.named).logits
    assert abs(float(ours) - float(wanted.loss)) < 1e-5
    assert (logits - wanted.logits)[mask].abs().max() < 1e-4


# ---------------------------------------------------------------- pairs


@pytest.mark.parametrize("kind", ["next", "order"])
def test_pairs_are_right_in_half_of_the_rows_and_framed(kind: Any) -> None:
    blocks = text_blocks(60_000, 32)
    facts, draw = blocks.facts, Draw(3, 0)
    batch = blocks.batch(range(len(blocks)), draw)
    made = make_pairs(batch, kind, draw, blocks, facts)
    assert made.pair is not None and made.inputs[0].shape == batch.inputs[0].shape
    share = float(made.pair.double().mean())
    assert abs(share - 0.5) < 4 * 0.5 / math.sqrt(len(blocks))
    for row in range(len(blocks)):
        text = batch.inputs[0][row][batch.targets[row] != IGNORED].tolist()
        got = made.inputs[0][row].tolist()
        half = len(text) // 2
        first, second = text[:half], text[half:-1]
        right = [facts.cls, *first, facts.sep, *second, facts.sep]
        swapped = [facts.cls, *second, facts.sep, *first, facts.sep]
        if not made.pair[row]:
            assert got == right
        elif kind == "order":
            assert got == swapped
        else:
            assert got[: half + 2] == right[: half + 2] and got != right
        ends = [place for place, token in enumerate(got) if token == facts.sep]
        assert len(ends) == 2 and made.named["segments"][row].tolist() == [0] * (ends[0] + 1) + [1] * (31 - ends[0])


@pytest.mark.parametrize(("name", "kind"), [("bert-base-tiny", "next"), ("albert-base-tiny", "order")])
def test_the_sum_of_both_losses_equals_that_of_transformers(name: str, kind: Any, tmp_path: Path) -> None:
    from transformers import AutoModelForPreTraining

    from anyformer.checkpoints.folder import save_foreign

    blocks, objective = text_blocks(4_000, 102), Masked(pairs=kind, rate=0.1)
    model = fitted(name, blocks.vocab, objective).build(seed=0).eval()
    save_foreign(tmp_path / "theirs", model.spec, model)
    with quietly():
        theirs, info = AutoModelForPreTraining.from_pretrained(tmp_path / "theirs", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert type(theirs).__name__ == {"next": "BertForPreTraining", "order": "AlbertForPreTraining"}[kind]
    batch = objective.corrupt(blocks.batch(range(8), Draw(0, 0)), Draw(0, 0), blocks)
    counts = (batch.targets != IGNORED).sum(1)
    batch = rows_where(batch, counts == counts.mode().values)  # rows weigh alike where they have as many targets
    asked = {"next": "next_sentence_label", "order": "sentence_order_label"}[kind]
    with torch.no_grad():
        wanted = theirs.eval()(input_ids=batch.inputs[0], token_type_ids=batch.named["segments"], labels=batch.targets,
                               **{asked: batch.pair}).loss  # fmt: skip
        ours = objective.loss(model, batch) / objective.weight(batch)
        alone = Masked().loss(model_with_words(model), replace(batch, pair=None)) / objective.weight(batch)
    assert abs(float(ours) - float(wanted)) < 1e-5
    assert float(ours) - float(alone) > 0.5  # control: the pair's part is there, about ln 2


def rows_where(batch: Batch, chosen: Tensor) -> Batch:
    """Some rows of a batch."""
    return replace(batch, inputs=(batch.inputs[0][chosen],), targets=batch.targets[chosen], rows=batch.rows[chosen],
                   named={name: value[chosen] for name, value in batch.named.items()},
                   pair=None if batch.pair is None else batch.pair[chosen])  # fmt: skip


def model_with_words(model: Any) -> Any:
    """The same network with the head for words alone."""
    made = model.spec.replace(head=model.spec.head.words).build(seed=0).eval()
    weights = {name.replace("head.words.", "head."): value for name, value in model.state_dict().items()}
    made.load_state_dict({name: value for name, value in weights.items() if not name.startswith("head.pair.")})
    return made


def test_parts_of_a_batch_with_pairs_add_up() -> None:
    blocks, objective = text_blocks(3_000, 40), Masked(pairs="next")
    model = fitted("bert-base-tiny", blocks.vocab, objective).build(seed=0, dtype=torch.float64).eval()
    whole = objective.corrupt(blocks.batch(range(6), Draw(0, 0)), Draw(0, 0), blocks)
    parts = [objective.corrupt(blocks.batch(rows, Draw(0, 0)), Draw(0, 0), blocks) for rows in ([0, 1], [2, 3, 4, 5])]
    with torch.no_grad():
        apart = sum(float(objective.loss(model, part)) for part in parts)
        assert abs(float(objective.loss(model, whole)) - apart) < 1e-9


# ---------------------------------------------------------------- learning


@pytest.mark.parametrize("pairs", ["none", "order"])
def test_a_toy_is_learned_from_chance_on(pairs: Any) -> None:
    """Token t + 1 follows t: any hidden token follows from its neighbours, and so does the order of two halves."""
    blocks = text_blocks(100)
    drawable = blocks.facts.drawable[:60]
    ids = drawable[np.arange(12_000) % len(drawable)]
    rows, objective = Blocks(ids, 26, vocab=blocks.vocab, tokenizer=blocks.tokenizer), Masked(pairs=pairs)
    torch.manual_seed(0)
    model = fitted("bert-base-tiny", blocks.vocab, objective).build(seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    order, losses = np.random.default_rng(0), []
    for step in range(120):
        draw = Draw(0, step)
        batch = objective.corrupt(rows.batch(order.integers(0, len(rows), 32), draw), draw, rows)
        loss = objective.loss(model, batch) / objective.weight(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    chance = math.log(blocks.vocab) + (0 if pairs == "none" else math.log(2))
    assert abs(losses[0] - chance) < 0.25
    assert losses[-1] < 0.35 * chance
    batch = objective.corrupt(rows.batch(range(64)), EVALUATION, rows)
    with torch.no_grad():
        out = model.eval()(*batch.inputs, **batch.named)
    asked = batch.targets != IGNORED
    assert float((out.logits.argmax(-1) == batch.targets)[asked].double().mean()) > 0.6

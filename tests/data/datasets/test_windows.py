"""Windows of a language model: every token once, each pass cut elsewhere, the shift made in one place."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from anyformer.data.datasets.windows import Windows
from anyformer.data.examples import Draw
from anyformer.data.tokenizers.tokenizer import train_tokenizer
from anyformer.errors import UserError


def windows(count: int = 1000, length: int = 16) -> Windows:
    """Tokens that are all different, so that a token tells its place."""
    return Windows(np.arange(100, 100 + count, dtype=np.uint32), length, bytes=3 * count, vocab=50)


@pytest.mark.quick
@pytest.mark.parametrize("count", [2, 15, 16, 17, 18, 32, 33, 34, 1000])
def test_without_a_draw_every_token_but_the_first_is_a_target_once(count: int) -> None:
    rows = windows(count)
    batch = rows.batch(range(len(rows)))
    counted = batch.targets[batch.targets >= 0]
    assert counted.tolist() == list(range(101, 100 + count))
    assert batch.inputs[0].shape == batch.targets.shape == (len(rows), 16)
    inputs = batch.inputs[0][batch.targets >= 0]
    assert torch.equal(inputs + 1, counted)  # each target follows its input
    assert rows.tokens == count


def naive(ids: np.ndarray, start: int, length: int, fill: int) -> tuple[list[int], list[int]]:
    """One window, a token at a time."""
    inputs, targets = [], []
    for place in range(start, start + length):
        there = place + 1 < len(ids)
        inputs.append(int(ids[place]) if there else fill)
        targets.append(int(ids[place + 1]) if there else -100)
    return inputs, targets


@pytest.mark.parametrize("draw", [None, Draw(3, 0), Draw(3, 7)])
def test_a_batch_equals_a_loop_over_tokens(draw: Draw | None) -> None:
    rows = windows(517, 32)
    order = np.random.default_rng(0).permutation(len(rows))
    batch = rows.batch(order, draw)
    for i, start in enumerate(rows.starts(order, draw)):
        inputs, targets = naive(rows.ids, int(start), 32, rows.fill)
        assert batch.inputs[0][i].tolist() == inputs
        assert batch.targets[i].tolist() == targets
    assert batch.rows.tolist() == order.tolist()


def test_a_row_is_the_same_in_whatever_order_and_company_it_is_asked_for() -> None:
    rows, draw = windows(), Draw(1, 4)
    together = rows.batch(range(len(rows)), draw)
    order = np.random.default_rng(2).permutation(len(rows))
    for chunk in np.array_split(order, 5):
        batch = rows.batch(chunk, draw)
        assert torch.equal(batch.inputs[0], together.inputs[0][chunk])
        assert torch.equal(batch.targets, together.targets[chunk])


def test_each_pass_cuts_elsewhere_and_all_of_the_text_is_seen() -> None:
    rows = windows(1000, 16)
    starts = [int(rows.starts([0], Draw(0, epoch))[0]) for epoch in range(40)]
    assert len(set(starts)) > 10
    assert starts != [int(rows.starts([0], Draw(1, epoch))[0]) for epoch in range(40)]  # the seed counts
    assert starts == [int(rows.starts([0], Draw(0, epoch))[0]) for epoch in range(40)]
    seen: set[int] = set()
    for epoch in range(40):
        targets = rows.batch(range(len(rows)), Draw(0, epoch)).targets
        assert (targets >= 0).all()  # no padding while training
        seen |= set(targets.flatten().tolist())
    assert seen == set(range(101, 1100))


@pytest.mark.parametrize("count", [17, 18, 20, 33, 40])
def test_drawn_windows_stay_inside_short_texts(count: int) -> None:
    rows = windows(count)
    for epoch in range(20):
        targets = rows.batch(range(len(rows)), Draw(0, epoch)).targets
        assert targets.min() > 100
        assert targets.max() < 100 + count


def test_a_text_shorter_than_a_window_is_padded_with_a_draw_too() -> None:
    rows = windows(10, 16)
    assert (rows.batch([0], Draw(0, 3)).targets[0] >= 0).sum() == 9


def test_rows_outside_are_refused() -> None:
    rows = windows()
    with pytest.raises(IndexError):
        rows.batch([len(rows)])
    with pytest.raises(IndexError):
        rows.batch([-1])
    with pytest.raises(UserError, match="1 tokens make no window"):
        Windows(np.arange(1), 4)


def test_tokens_on_disk_are_not_read_as_a_whole(tmp_path) -> None:
    np.save(tmp_path / "ids.npy", np.arange(5000, dtype=np.uint16))
    mapped = np.load(tmp_path / "ids.npy", mmap_mode="r")
    rows = Windows(mapped, 64)
    assert rows.ids.base is not None  # a view of the map
    assert rows.batch([3]).inputs[0][0, 0] == 192


def test_what_is_shown_of_a_row_and_where_it_stands() -> None:
    tokenizer = train_tokenizer(["the rose is red"], "char", 60)
    ids = np.array(tokenizer.encode("the rose is red" * 10, special=False))
    marks = np.array([[0, 0, 0], [70, 1, 0], [100, 1, 30]])
    rows = Windows(ids, 10, bytes=150, vocab=tokenizer.size, tokenizer=tokenizer, marks=marks, names=["a.txt", "b.txt"])
    assert rows.shown(0) == "the rose is"
    assert rows.shown(0, most=3) == "the"
    assert rows.place(0) == "a.txt, about character 1"
    assert rows.place(6) == "a.txt, about character 61"
    assert rows.place(8) == "b.txt, about character 11"
    assert windows().place(2) == "tokens 32 to 48"
    assert abs(rows.first_nats - np.log(tokenizer.size)) < 1e-12

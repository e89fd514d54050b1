"""Batches: what a model is called with for text, pairs, tables, pictures and mixtures, tags on the right tokens."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch

from anyformer.data.examples import Draw
from anyformer.data.prepare_rows import examples_for
from anyformer.data.settings import Data, ImageSettings, Split, TokenizerSettings
from anyformer.data.targets import Classes
from anyformer.data.tokenizers.parallel_encode import Framer, around, fair
from anyformer.tasks.prepare import prepare

DRAW = np.random.default_rng(0)
WORDS = "the rose is red and violets are blue but oaks stand tall in old woods near a quiet lake".split()
ROWS = 120


def text(most=20):
    return " ".join(DRAW.choice(WORDS, DRAW.integers(2, most)))


TEXT, OTHER = [text() for _ in range(ROWS)], [text() for _ in range(ROWS)]
LABEL = DRAW.choice(["no", "yes"], ROWS).tolist()
SIZE = DRAW.normal(size=ROWS).tolist()
CITY = DRAW.choice(["Rom", "Bonn"], ROWS).tolist()
NONE = Split(valid=0.0, test=0.0)


def made(tmp_path, columns, task=None, **settings):
    return prepare(columns, task=task, settings=Data(**({"split": NONE} | settings)), cache=tmp_path / "cache")


@pytest.mark.quick
def test_text_is_what_the_tokenizer_gives_padded_on_the_right(tmp_path):
    found = made(tmp_path, {"text": TEXT, "label": LABEL})
    rows = [5, 0, 77]
    batch = found.train.batch(rows)
    (tokens,), mask = batch.inputs, batch.named["mask"]
    assert tokens.dtype == torch.int64 and mask.dtype == torch.bool and batch.targets.dtype == torch.int64
    for i, row in enumerate(rows):
        ids = found.tokenizer.encode(TEXT[row])
        assert tokens[i, : len(ids)].tolist() == ids and mask[i].tolist() == [True] * len(ids) + [False] * (
            tokens.shape[1] - len(ids)
        )
        assert (tokens[i, len(ids) :] == found.tokenizer.pad).all()
        assert found.preprocess.labels[batch.targets[i]] == LABEL[row]
        assert found.train.lengths[row] == len(ids)
    assert tokens.shape[1] == max(found.train.lengths[rows]) and batch.rows.tolist() == rows


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram", "word", "char", "byte"])
def test_two_texts_are_a_pair_as_the_tokenizer_writes_pairs(tmp_path, kind):
    found = made(tmp_path, {"one": TEXT, "two": OTHER, "label": LABEL}, tokenizer=TokenizerSettings(kind=kind))
    batch = found.train.batch([3])
    assert batch.inputs[0][0].tolist() == found.tokenizer.encode(TEXT[3], OTHER[3])
    if kind == "wordpiece":
        types = found.tokenizer.core.encode(TEXT[3], OTHER[3]).type_ids
        assert batch.named["segments"][0].tolist() == types and found.facts["sizes"]["segments"] == 2
    else:
        assert "segments" not in batch.named and found.facts["sizes"]["segments"] == 0


def test_a_long_pair_is_cut_where_it_is_longest_and_keeps_its_frame(tmp_path):
    found = made(
        tmp_path,
        {"one": TEXT, "two": OTHER, "label": LABEL},
        tokenizer=TokenizerSettings(kind="wordpiece", max_length=14),
    )
    tokenizer = found.tokenizer
    cut = 0
    for row in range(ROWS):
        ids = found.train.batch([row]).inputs[0][0].tolist()
        whole = tokenizer.encode(TEXT[row], OTHER[row])
        assert len(ids) == min(14, len(whole)) and ids[0] == tokenizer.cls and ids[-1] == tokenizer.sep
        assert ids.count(tokenizer.sep) == 2
        cut += len(whole) > 14
        assert found.train.cut(row) == (len(whole) > 14)
    assert found.facts["cut"] == cut > 0 and any("of rows cut at 14 tokens" in note for note in found.notes)


def test_fair_takes_from_the_longest():
    for _ in range(300):
        lengths = DRAW.integers(0, 40, DRAW.integers(1, 5)).tolist()
        room = int(DRAW.integers(1, 60))
        kept = fair(lengths, room)
        assert sum(kept) == min(room, sum(lengths)) and all(k <= n for k, n in zip(kept, lengths, strict=True))
        shortened = [k for k, n in zip(kept, lengths, strict=True) if k < n]
        assert not shortened or max(kept) - min(shortened) <= 1


def test_three_texts_stand_one_behind_the_other(tmp_path):
    found = made(tmp_path, {"a": TEXT, "b": OTHER, "c": TEXT[::-1], "label": LABEL})
    tokenizer, marks = found.tokenizer, around(found.tokenizer)
    parts = [tokenizer.encode(cells[4], special=False) for cells in (TEXT, OTHER, TEXT[::-1])]
    between = [tokenizer.eos]
    expected = [*marks.front, *parts[0], *between, *parts[1], *between, *parts[2], *marks.back]
    assert found.train.batch([4]).inputs[0][0].tolist() == expected


@pytest.mark.quick
def test_a_table_is_numbers_and_categories(tmp_path):
    city = [None if i % 10 == 0 else c for i, c in enumerate(CITY)]
    size = [None if i % 7 == 0 else s for i, s in enumerate(SIZE)]
    found = made(tmp_path, {"size": size, "city": city, "sure": CITY, "label": LABEL})
    numbers, categories = found.train.batch(range(ROWS)).inputs
    assert numbers.shape == (ROWS, 1) and numbers.dtype == torch.float32 and categories.dtype == torch.int64
    assert numbers.isnan()[:, 0].tolist() == [s is None for s in size]
    assert categories[:, 0].tolist() == [-1 if c is None else ["Bonn", "Rom"].index(c) for c in city]
    assert found.train.lengths is None and found.train.batch([0]).named == {}
    assert made(tmp_path, {"size": size, "label": LABEL}).train.batch([0]).inputs[1] is None
    assert made(tmp_path, {"city": city, "label": LABEL}).train.batch([0]).inputs[0] is None


def test_targets_of_numbers_and_of_several_labels(tmp_path):
    found = made(tmp_path, {"x": SIZE, "c": CITY, "y": [s * 3 + 5 for s in SIZE]})
    targets = found.train.batch(range(ROWS)).targets
    assert targets.shape == (ROWS,) and targets.dtype == torch.float32
    assert found.preprocess.target.undo(targets.numpy()) == pytest.approx([s * 3 + 5 for s in SIZE], abs=1e-4)
    two = made(tmp_path, {"x": SIZE, "a": [s * 3 for s in SIZE], "b": [s - 1 for s in SIZE]}, target=("a", "b"))
    assert two.train.batch([0, 1]).targets.shape == (2, 2) and two.facts["sizes"]["outputs"] == 2
    many = made(tmp_path, {"x": SIZE, "label": [f"a;{c}" for c in CITY]})
    targets = many.train.batch(range(ROWS)).targets
    assert isinstance(many.preprocess.target, Classes) and many.preprocess.labels == ("Bonn", "Rom", "a")
    assert targets.tolist() == [[float(c == "Bonn"), float(c == "Rom"), 1.0] for c in CITY]


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram", "char"])
def test_tags_stand_on_the_first_part_of_their_word(tmp_path, kind):
    words = [t.split() for t in TEXT]
    tags = [["DET" if w in ("the", "a") else "W" + w[0] for w in row] for row in words]
    found = made(
        tmp_path,
        {"words": words, "tags": tags},
        target=("tags",),
        tokenizer=TokenizerSettings(kind=kind, vocab_size=300 if kind == "bpe" else 90),
    )
    tokenizer, labels = found.tokenizer, found.preprocess.labels
    for row in range(0, ROWS, 7):
        batch = found.train.batch([row, (row + 1) % ROWS])
        ids, targets = batch.inputs[0][0].tolist(), batch.targets[0].tolist()
        begins = found.train.begins(row).tolist()
        assert [labels[targets[at]] for at in begins] == tags[row]
        assert all(tag == -100 for at, tag in enumerate(targets) if at not in begins)
        length = int(found.train.lengths[row])
        assert ids[:length] == tokenizer.encode(" ".join(words[row]))
        for word, at, stop in zip(words[row], begins, [*begins[1:], length - len(around(tokenizer).back)], strict=True):
            assert tokenizer.decode(ids[at:stop]).replace("##", "").replace(" ", "") == word


def test_a_long_sentence_loses_its_last_words(tmp_path):
    words = [t.split() for t in TEXT]
    found = made(
        tmp_path,
        {"words": words, "tags": [["T"] * len(w) for w in words]},
        target=("tags",),
        tokenizer=TokenizerSettings(max_length=8),
    )
    for row, sentence in enumerate(words):
        kept = len(found.train.begins(row))
        assert found.train.cut(row) == (found.train.lengths[row] == 8 and kept < len(sentence)) or kept == len(sentence)
        assert (found.train.batch([row]).targets >= 0).sum() == kept <= 6
    assert found.facts["cut"] > 0


@pytest.mark.quick
def test_a_pair_of_texts_is_read_and_written_one_token_late(tmp_path):
    found = made(tmp_path, {"source": TEXT, "target": OTHER}, task="translate")
    tokenizer = found.tokenizer
    batch = found.train.batch([0, 1, 2])
    source, before = batch.inputs
    for i in range(3):
        ids = [*tokenizer.encode(OTHER[i], special=False), tokenizer.eos]
        assert source[i][batch.named["source_mask"][i]].tolist() == tokenizer.encode(TEXT[i])
        assert batch.targets[i].tolist() == ids + [-100] * (batch.targets.shape[1] - len(ids))
        assert before[i][batch.named["target_mask"][i]].tolist() == [tokenizer.bos, *ids[:-1]]
    alone = examples_for(found.train.frame.of(["source"]), found.preprocess, tokenizer, tmp_path / "new")[0].batch([0])
    assert alone.inputs[1].tolist() == [[tokenizer.bos]] and alone.targets.tolist() == [[-100]]


def pictures(folder):
    image = pytest.importorskip("PIL.Image")
    folder.mkdir()
    names = []
    for i in range(40):
        pixels = np.random.default_rng(i).integers(0, 255, (12, 12, 3), dtype=np.uint8)
        image.fromarray(pixels).save(folder / f"{i}.png")
        names.append(str(folder / f"{i}.png"))
    return names


def test_a_mixture_has_one_entry_a_part_and_a_mask_for_each(tmp_path):
    names = pictures(tmp_path / "images")
    names[3] = ""
    rows = {
        "photo": names,
        "note": TEXT[:40],
        "more": OTHER[:40],
        "size": SIZE[:40],
        "city": CITY[:40],
        "label": LABEL[:40],
    }
    found = made(tmp_path, rows, types=("photo=image",))
    assert found.preprocess.parts == ("text", "table", "image")
    batch = found.train.batch([2, 3])
    tokens, (numbers, categories), pixels = batch.inputs
    text_mask, table_mask, image_mask = batch.named["mask"]
    assert tokens.shape == text_mask.shape and table_mask is None and image_mask.tolist() == [True, False]
    assert numbers.shape == categories.shape == (2, 1) and pixels.shape == (2, 3, 12, 12)
    assert pixels.dtype == torch.float32 and pixels[0].min() >= -1 and pixels[0].max() <= 1
    sizes = found.facts["sizes"]
    assert (sizes["image"], sizes["channels"], sizes["numbers"], sizes["categories"]) == (12, 3, 1, [3])


def test_pictures_vary_with_the_draw_and_only_with_it(tmp_path):
    names = pictures(tmp_path / "images")
    found = made(
        tmp_path, {"photo": names, "label": LABEL[:40]}, types=("photo=image",), images=ImageSettings(randaugment=0)
    )
    plain = found.train.batch([4, 5]).inputs[0]
    one, two = found.train.batch([4, 5], Draw(0, 1)).inputs[0], found.train.batch([5, 4], Draw(0, 1)).inputs[0]
    assert torch.equal(one[0], two[1]) and torch.equal(one[1], two[0]) and not torch.equal(one, plain)
    assert not torch.equal(one, found.train.batch([4, 5], Draw(0, 2)).inputs[0])


def test_examples_go_to_another_process_without_their_arrays(tmp_path):
    found = made(tmp_path, {"text": TEXT * 20, "size": SIZE * 20, "label": LABEL * 20})
    found.train.batch([0])
    sent = pickle.dumps(found.train)
    assert len(sent) < 60_000 + 8 * len(found.train)
    again = pickle.loads(sent)
    one, two = found.train.batch([7, 8]), again.batch([7, 8])
    assert torch.equal(one.inputs[0], two.inputs[0]) and torch.equal(one.inputs[1][0], two.inputs[1][0])
    assert again.place(7) == found.train.place(7) and again.shown(7) == found.train.shown(7)
    assert copy.copy(found.train).place(3) == found.train.place(3)


def test_a_row_without_a_token_gets_one(tmp_path):
    from anyformer.data.tokenizers.tokenizer import train_tokenizer

    bare = train_tokenizer(["a b c"], "bpe", 300)
    assert Framer(bare, 8, 1)([[]])[0] != []

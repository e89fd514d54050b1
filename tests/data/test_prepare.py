"""`prepare`: files in, examples out; everything is said, adds up, is fitted on training rows, and opens again alike."""

from __future__ import annotations

import csv
import gzip
import json

import numpy as np
import pytest
import torch

from anyformer.data.counts import UNKNOWN
from anyformer.data.prepare_rows import examples_for
from anyformer.data.prepared import StartModelConstraints
from anyformer.data.reopen import open_prepared
from anyformer.data.settings import Columns, Data, Split, TokenizerSettings
from anyformer.data.splits import TRAIN
from anyformer.data.tokenizers.tokenizer import train_tokenizer
from anyformer.errors import UserError
from anyformer.evaluation.answers import Answers
from anyformer.objectives.objective import IGNORED
from anyformer.tasks import find
from anyformer.tasks.prepare import prepare, read_new_rows

DRAW = np.random.default_rng(1)
VOCABULARY = "the rose is red and violets are blue but oaks stand tall in old woods near a quiet lake".split()


def text(most=14):
    return " ".join(DRAW.choice(VOCABULARY, DRAW.integers(3, most)))


def rows_of(count=200):
    draw = np.random.default_rng(7)
    return [
        {
            "age": str(draw.integers(1, 90)), "size": f"{draw.normal():.5f}",
            "city": str(draw.choice(["Rom", "Bonn", "Oslo"])),
            "day": str(np.datetime64("2020-01-01") + int(draw.integers(0, 900))), "note": text(),
            "label": str(draw.choice(["yes", "no"], p=[0.7, 0.3])),
        }
        for _ in range(count)
    ]  # fmt: skip


ROWS = rows_of()


def written(path, rows, names=None, delimiter=","):
    names = names or list(rows[0])
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names, extrasaction="ignore", delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)
    return path


def go(tmp_path, source, task=None, seed=0, given=None, name="cache", **settings):
    said: list[str] = []
    made = prepare(
        source, task=task, settings=Data(**settings), seed=seed, cache=tmp_path / name, given=given, log=said.append
    )
    assert made.notes == said
    return made


def flat(value):
    """Every tensor of a batch, by a path."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [tensor for name in sorted(value) for tensor in flat(value[name])]
    return [tensor for item in value for tensor in flat(item)] if isinstance(value, tuple | list) else []


def same(one, two):
    pairs = list(
        zip(flat([one.inputs, one.targets, one.named]), flat([two.inputs, two.targets, two.named]), strict=True)
    )
    bits = [(a.nan_to_num(9e9), b.nan_to_num(9e9)) if a.is_floating_point() else (a, b) for a, b in pairs]
    return bool(pairs) and all(torch.equal(a, b) for a, b in bits)


@pytest.mark.quick
def test_a_csv_is_prepared_and_every_decision_is_said(tmp_path):
    made = go(tmp_path, [written(tmp_path / "cars.csv", ROWS)])
    assert (len(made.train), len(made.valid), len(made.test)) == (160, 20, 20) and made.task == "classify"
    words = [note.split()[0] for note in made.notes]
    assert {"file", "task", "column", "target", "split", "tokens", "rows", "disk"} <= set(words)
    assert any(note.startswith("file     cars.csv: 200 rows") for note in made.notes)
    facts = json.loads(json.dumps(made.facts))
    assert facts["split"] == {"train": 160, "valid": 20, "test": 20} and len(facts["sources"][0]["sha256"]) == 64
    assert (
        sum(facts["labels"].values()) == 160 and facts["used"] + sum(facts["skipped"].values()) == facts["rows"] == 200
    )
    assert "cars.csv row " in made.train.place(0) and "age=" in made.train.shown(0)
    assert not (tmp_path / "cache" / "read").exists()


def test_the_same_data_and_seed_give_the_same_bytes(tmp_path):
    path = written(tmp_path / "cars.csv", ROWS)
    one, two, other = (go(tmp_path, [path], seed=seed, name=str(i)) for i, seed in enumerate((0, 0, 1)))
    assert one.facts["fingerprint"] == two.facts["fingerprint"] != other.facts["fingerprint"]
    assert same(one.train.batch(range(50)), two.train.batch(range(50)))


@pytest.mark.parametrize(
    "damage", [None, "tokens.npy", "preprocess.json", "frame.arrow", "tokenizer.json", "arrays.json"]
)
def test_what_was_prepared_opens_to_the_same_batches_or_not_at_all(tmp_path, damage):
    rows = [dict(row, label="") if i % 20 == 0 else row for i, row in enumerate(ROWS)]
    made = go(tmp_path, [written(tmp_path / "cars.csv", rows)])
    if damage is not None:
        path = tmp_path / "cache" / damage
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data if damage != "arrays.json" else data[: len(data) // 2])
        assert open_prepared(tmp_path / "cache") is None
        return
    again = open_prepared(tmp_path / "cache")
    for one, two in ((made.train, again.train), (made.valid, again.valid), (made.test, again.test)):
        assert same(one.batch(range(len(one))), two.batch(range(len(two))))
        assert [one.place(i) for i in range(len(one))] == [two.place(i) for i in range(len(two))]
    assert again.preprocess == made.preprocess and again.facts == made.facts
    assert again.tokenizer.sha256 == made.tokenizer.sha256
    assert open_prepared(tmp_path / "nowhere") is None


@pytest.mark.quick
def test_validation_and_test_rows_do_not_touch_what_is_fitted(tmp_path):
    sides = ["train"] * 120 + ["valid"] * 40 + ["test"] * 40
    rows = [dict(row, part=side) for row, side in zip(ROWS, sides, strict=True)]
    other = [
        row if row["part"] == "train"
        else dict(row, age="777", size=f"{i}.25", city="Atlantis", day="1980-02-03", note="zyzzyva " + row["note"] * 9)
        for i, row in enumerate(rows)
    ]  # fmt: skip
    split = Split(column="part")
    one = go(tmp_path, [written(tmp_path / "a.csv", rows)], split=split)
    two = go(tmp_path, [written(tmp_path / "b.csv", other)], split=split, name="other")
    assert one.preprocess.to_json() == two.preprocess.to_json()
    assert one.tokenizer.sha256 == two.tokenizer.sha256
    assert same(one.train.batch(range(120)), two.train.batch(range(120)))
    # Control: with every row in training, each fitted part is another.
    wrong = [dict(row, part="train") for row in rows], [dict(row, part="train") for row in other]
    one, two = (
        go(tmp_path, [written(tmp_path / f"{i}.csv", cells)], split=Split(column="part", valid=0.0), name=f"w{i}")
        for i, cells in enumerate(wrong)
    )
    assert all(a != b for a, b in zip(one.preprocess.columns[:4], two.preprocess.columns[:4], strict=True))
    assert one.tokenizer.sha256 != two.tokenizer.sha256


def test_rows_that_cannot_be_used_are_counted_and_add_up(tmp_path):
    rows = [dict(row) for row in ROWS]
    for row in (3, 50, 51):
        rows[row]["label"] = ""
    rows[70] |= dict.fromkeys(("age", "size", "city", "day", "note"), "")
    path = written(tmp_path / "cars.csv", rows)
    path.write_text(path.read_text() + "1,2,3\n")
    made = go(tmp_path, [path])
    facts = made.facts
    assert facts["rows"] == 201 and facts["used"] == 196
    assert facts["skipped"]["the target is missing"] == 3 and facts["skipped"]["every input is missing"] == 1
    assert sum(facts["skipped"].values()) + facts["used"] == facts["rows"]
    assert any("201 = 196 used + 5 skipped" in note for note in made.notes)
    assert any("3: the target is missing, first cars.csv row 5" in note for note in made.notes)
    places = {examples.place(i) for examples in (made.train, made.valid, made.test) for i in range(len(examples))}
    assert len(places) == 196 and "cars.csv row 5" not in places
    with pytest.raises(UserError, match=r"cars.csv row \d+: "):
        go(tmp_path, [path], bad="error", name="strict")
    assert not (tmp_path / "strict").exists()


def test_a_label_that_only_held_out_rows_have_is_left_out_and_named(tmp_path):
    rows = [dict(row, part="train" if i < 150 else "valid") for i, row in enumerate(ROWS)]
    rows[160]["label"] = "perhaps"
    path = written(tmp_path / "cars.csv", rows)
    made = go(tmp_path, [path], split=Split(column="part"))
    assert len(made.valid) == 49 and made.facts["skipped"] == {"the label is not in the training rows": 1}
    assert any("'perhaps'" in note for note in made.notes)
    with pytest.raises(UserError, match=r"cars.csv row 162: the label 'perhaps' is in no training row"):
        go(tmp_path, [path], split=Split(column="part"), bad="error", name="strict")
    for row in rows[150:]:
        row["label"] += "."
    with pytest.raises(UserError, match=r"row 152: the label '(yes|no).' is in no training row, nor is any other"):
        go(tmp_path, [written(tmp_path / "dots.csv", rows)], split=Split(column="part"), name="dots")


def test_a_label_that_only_test_rows_have_counts_as_wrong(tmp_path):
    """Without such rows a model that lacks classes would look better than it is."""
    rows = [dict(row, part="train" if i < 120 else "valid" if i < 150 else "test") for i, row in enumerate(ROWS)]
    for at in (130, 160, 170):
        rows[at]["label"] = "perhaps"
    made = go(tmp_path, [written(tmp_path / "cars.csv", rows)], split=Split(column="part"))
    assert len(made.test) == 50 and len(made.valid) == 29  # which chooses between checkpoints, and needs known labels
    assert any(
        "2 test rows have labels that no training row has" in note and "'perhaps'" in note for note in made.notes
    )
    stored = np.asarray(made.test.arrays["targets"][made.test.rows])
    batch = made.test.batch(range(50))
    assert (stored == UNKNOWN).sum() == 2 and (batch.targets == IGNORED).tolist() == (stored == UNKNOWN).tolist()
    said = np.where(stored >= 0, stored, 0)  # right wherever it can be
    task, answers = find("classify"), Answers("classify", stored, said, np.eye(2)[said], ["no", "yes"])
    found = task.metrics(answers)
    assert found["accuracy"] == 48 / 50 and found["balanced_accuracy"] == pytest.approx(2 / 3) and found["auc"] == 1.0
    assert task.row_sums(answers, "accuracy").value == pytest.approx(48 / 50)
    assert task.row_sums(answers, "balanced_accuracy").value == pytest.approx(2 / 3)
    assert task.notes(answers)[0].startswith("2 rows have a label that training lacks")
    assert task.describe(answers, int(np.flatnonzero(stored < 0)[0]))["truth"] == "(a label that training lacks)"
    # The control: a missing label is no wrong answer.
    missing = Answers("classify", np.where(stored < 0, IGNORED, stored), said, np.eye(2)[said], ["no", "yes"])
    assert task.metrics(missing)["accuracy"] == 1.0 and not task.notes(missing)


def test_files_for_validation_and_test_are_those_sides(tmp_path):
    train, valid, test = (
        written(tmp_path / f"{n}.csv", r) for n, r in (("t", ROWS[:120]), ("v", ROWS[120:160]), ("e", ROWS[160:]))
    )
    made = go(tmp_path, [train], split=Split(valid_file=(str(valid),), test_file=(str(test),)))
    assert (len(made.train), len(made.valid), len(made.test)) == (120, 40, 40)
    assert (
        made.train.place(0) == "t.csv row 2"
        and made.valid.place(0) == "v.csv row 2"
        and made.test.place(39) == "e.csv row 41"
    )
    assert made.valid.cells(0)["note"] == ROWS[120]["note"]
    turned = written(tmp_path / "turned.csv", ROWS[160:], names=["label", "day", "note", "city", "size", "age"])
    again = go(tmp_path, [train], split=Split(valid_file=(str(valid),), test_file=(str(turned),)), name="turned")
    assert same(made.test.batch(range(40)), again.test.batch(range(40)))
    lacking = written(tmp_path / "lacking.csv", ROWS[160:], names=["age", "size", "city", "day", "note"])
    with pytest.raises(UserError, match=r"lacking.csv: 'label' is a column of the training rows but not of this file"):
        go(tmp_path, [train], split=Split(test_file=(str(lacking),)), name="lacking")


def test_several_files_are_one_table(tmp_path):
    paths = [written(tmp_path / "one.csv", ROWS[:90]), written(tmp_path / "two.csv", ROWS[90:])]
    made = go(tmp_path, paths, split=Split(valid=0.0, test=0.0))
    assert len(made.train) == 200 and made.valid is None and made.train.place(90) == "two.csv row 2"
    whole = go(tmp_path, [written(tmp_path / "all.csv", ROWS)], split=Split(valid=0.0, test=0.0), name="all")
    assert same(made.train.batch(range(200)), whole.train.batch(range(200)))


def test_equal_rows_stay_on_one_side_of_the_split(tmp_path):
    made = go(tmp_path, [written(tmp_path / "cars.csv", ROWS[:100] * 3)])
    assert made.facts["duplicates"] == 200
    seen = [{examples.shown(i, 999) for i in range(len(examples))} for examples in (made.train, made.valid, made.test)]
    assert not seen[0] & seen[1] and not seen[0] & seen[2] and not seen[1] & seen[2]


def test_a_column_called_split_is_believed(tmp_path):
    rows = [dict(row, split=("train", "dev", "test")[i % 3]) for i, row in enumerate(ROWS)]
    made = go(tmp_path, [written(tmp_path / "cars.csv", rows)])
    assert (len(made.train), len(made.valid), len(made.test)) == (67, 67, 66)
    assert made.facts["dropped"]["split"] == "says the split"


# ---------------------------------------------------------------- new rows


@pytest.mark.quick
def test_new_rows_are_encoded_as_the_training_rows_were_in_any_order_of_columns(tmp_path):
    made = go(tmp_path, [written(tmp_path / "cars.csv", ROWS)], split=Split(valid=0.0, test=0.0))
    straight = written(tmp_path / "new.csv", ROWS[:60])
    turned = written(
        tmp_path / "turned.csv",
        [dict(row, more="x") for row in ROWS[:60]],
        names=["more", "note", "label", "city", "age", "day", "size"],
    )
    whole = made.train.batch(range(60))
    for number, path in enumerate((straight, turned)):
        frame, notes = read_new_rows([path], made.preprocess, Data(), tmp_path / f"n{number}")
        examples, _ = examples_for(frame, made.preprocess, made.tokenizer, tmp_path / f"n{number}")
        assert same(examples.batch(range(60)), whole) and len(examples) == 60
        assert bool(notes) == (path == turned)
    bare = written(tmp_path / "bare.csv", ROWS[:60], names=["age", "size", "city", "day", "note"])
    frame, _ = read_new_rows([bare], made.preprocess, Data(), tmp_path / "n3")
    batch = examples_for(frame, made.preprocess, made.tokenizer, tmp_path / "n3")[0].batch(range(60))
    assert (
        same(type(batch)(batch.inputs, whole.targets, batch.rows, batch.named), whole) and (batch.targets == -100).all()
    )


def test_a_missing_column_is_named_and_an_unknown_category_counted(tmp_path):
    made = go(tmp_path, [written(tmp_path / "cars.csv", ROWS)])
    with pytest.raises(UserError, match=r"less.csv: the column 'city' is missing"):
        read_new_rows(
            [written(tmp_path / "less.csv", ROWS, names=["age", "size", "day", "note"])],
            made.preprocess,
            Data(),
            tmp_path / "n",
        )
    new = written(tmp_path / "new.csv", [dict(row, city="Paris") if i == 6 else row for i, row in enumerate(ROWS)])
    frame, _ = read_new_rows([new], made.preprocess, Data(), tmp_path / "n")
    examples, counts = examples_for(frame, made.preprocess, made.tokenizer, tmp_path / "n")
    assert counts.unknown == {"city": 1} and counts.unknown_first == {"city": "city=Paris, new.csv row 8"}
    assert examples.batch([6]).inputs[1][1].tolist() == [[3]]
    strict = made.preprocess.replace(unknown="error")
    with pytest.raises(UserError, match=r"new.csv row 8: city=Paris is not among the 3 values of the training rows"):
        examples_for(frame, strict, made.tokenizer, tmp_path / "n2")


def test_rare_values_and_strictness_are_settings(tmp_path):
    rows = [dict(row, city="Ulm") if i in (10, 150) else row for i, row in enumerate(ROWS)]
    made = go(
        tmp_path, [written(tmp_path / "cars.csv", rows)], columns=Columns(rare=3), split=Split(valid=0.0, test=0.0)
    )
    assert made.facts["unknown"] == {"city": 2} and made.facts["sizes"]["categories"] == [4]


@pytest.mark.parametrize("form", ["csv", "lines", "list"])
def test_a_model_of_one_text_takes_lines_rows_and_lists(tmp_path, form):
    rows = [{"review": row["note"], "label": row["label"]} for row in ROWS]
    made = go(tmp_path, [written(tmp_path / "reviews.csv", rows)], split=Split(valid=0.0, test=0.0))
    texts = [row["review"] for row in rows[:30]]
    if form == "csv":
        source = [written(tmp_path / "new.csv", rows[:30])]
    elif form == "lines":
        source = [tmp_path / "new.txt"]
        source[0].write_text("\n".join(texts) + "\n")
    else:
        source = texts
    frame, _ = read_new_rows(source, made.preprocess, Data(), tmp_path / "n")
    batch = examples_for(frame, made.preprocess, made.tokenizer, tmp_path / "n")[0].batch(range(30))
    assert torch.equal(batch.inputs[0], made.train.batch(range(30)).inputs[0])


# ---------------------------------------------------------------- other files


def test_two_parallel_files_are_a_translation(tmp_path):
    sides = {"en": [text() for _ in range(90)], "de": [text().upper() for _ in range(90)]}
    for language, found in sides.items():
        with gzip.open(tmp_path / f"train.{language}.gz", "wt") as file:
            file.write("\n".join(found) + "\n")
    made = go(tmp_path, [tmp_path / "train.en.gz", tmp_path / "train.de.gz"])
    assert made.task == "translate" and made.facts["rows"] == 90 and len(made.train) == 72
    source, _ = made.train.batch([0]).inputs
    assert made.tokenizer.decode(source[0].tolist()) == made.train.cells(0)["source"] in sides["en"]


def test_a_conll_file_is_tagging(tmp_path):
    sentences = [text().split() for _ in range(60)]
    lines = [f"{w}\t{'B-X' if w == 'rose' else 'O'}" for s in sentences for w in [*s, ""]]
    path = tmp_path / "words.conll"
    path.write_text("\n".join(line if line.strip() != "O" else "" for line in lines) + "\n")
    made = go(tmp_path, [path], split=Split(valid=0.0, test=0.0))
    assert made.task == "tag" and made.preprocess.labels == ("B-X", "O") and len(made.train) == 60
    batch = made.train.batch([5])
    tags = [made.preprocess.labels[batch.targets[0, at]] for at in made.train.begins(5)]
    assert tags == ["B-X" if w == "rose" else "O" for w in sentences[5]]


def photos(folder, count, seed):
    image = pytest.importorskip("PIL.Image")
    for label in ("cat", "dog"):
        (folder / label).mkdir(parents=True)
        for i in range(count):
            pixels = np.random.default_rng((seed, i, len(label), ord(label[0]))).integers(
                0, 255, (9, 9, 3), dtype=np.uint8
            )
            image.fromarray(pixels).save(folder / label / f"{i}.png")
    return folder


def test_a_folder_of_pictures_is_a_table_too(tmp_path):
    folder = photos(tmp_path / "photos", 20, 0)
    (folder / "cat" / "broken.png").write_bytes(b"no picture")
    (folder / "dog" / "copy.png").write_bytes((folder / "dog" / "3.png").read_bytes())
    made = go(tmp_path, [folder])
    assert made.facts["rows"] == 42 and made.facts["used"] == 41 and made.facts["duplicates"] == 1
    assert made.preprocess.labels == ("cat", "dog") and made.facts["sizes"]["image"] == 9
    assert made.train.place(0).endswith(".png")
    sides = {e.place(i): n for n, e in enumerate((made.train, made.valid, made.test)) for i in range(len(e))}
    assert sides[str(folder / "dog" / "copy.png")] == sides[str(folder / "dog" / "3.png")]
    again = open_prepared(tmp_path / "cache")
    assert same(made.valid.batch([0, 1]), again.valid.batch([0, 1])) and again.images == made.images
    with pytest.raises(UserError, match=r"broken\.png"):
        go(tmp_path, [folder], bad="error", name="strict")
    valid = photos(tmp_path / "more", 5, 1)
    made = go(tmp_path, [folder], split=Split(valid_file=(str(valid),)), name="valid")
    assert (len(made.train), len(made.valid), made.test) == (41, 10, None)
    frame, _ = read_new_rows([valid], made.preprocess, Data(), tmp_path / "new")
    new, _ = examples_for(frame, made.preprocess, None, tmp_path / "new", images=made.images)
    assert same(new.batch(range(10)), made.valid.batch(range(10)))


def test_running_text_goes_to_the_language_model(tmp_path):
    path = tmp_path / "book.txt"
    path.write_text("\n".join(text(30) + "." for _ in range(300)))
    assert go_text(path, tmp_path).task == "lm"


def go_text(path, tmp_path):
    return prepare(
        [path], settings=Data(tokenizer=TokenizerSettings(kind="char")), cache=tmp_path / "cache", log=lambda line: None
    )


def test_a_given_model_brings_tokenizer_labels_length_and_start(tmp_path):
    words = train_tokenizer([text() for _ in range(50)], "wordpiece", 200)
    given = StartModelConstraints(tokenizer=words, labels=["yes", "maybe", "no"], length=7, segments=False)
    rows = {
        "one": [r["note"] for r in ROWS],
        "two": [r["note"] for r in ROWS[::-1]],
        "label": [r["label"] for r in ROWS],
    }
    made = go(tmp_path, rows, given=given)
    assert made.tokenizer.sha256 == words.sha256 and made.preprocess.labels == ("yes", "maybe", "no")
    batch = made.train.batch(range(20))
    assert batch.inputs[0].shape[1] <= 7 and "segments" not in batch.named and made.facts["sizes"]["classes"] == 3
    pairs = {"source": rows["one"], "target": rows["two"]}
    made = go(
        tmp_path, pairs, task="translate", given=StartModelConstraints(tokenizer=words, start=words.pad), name="pairs"
    )
    assert (made.train.batch([0]).inputs[1][:, 0] == words.pad).all()


def test_python_data_and_a_regression(tmp_path):
    table = {"x": np.linspace(0, 1, 50), "y": np.linspace(5, 9, 50)}
    made = go(tmp_path, table)
    assert made.task == "regress" and made.facts["split"] == {"train": 40, "valid": 5, "test": 5}
    undone = made.preprocess.target.undo(made.train.batch(range(40)).targets.numpy())
    assert undone == pytest.approx([made.train.cells(i)["y"] for i in range(40)], abs=1e-5)


def test_the_classes_of_held_out_rows_have_their_share(tmp_path):
    made = go(tmp_path, [written(tmp_path / "cars.csv", ROWS)])
    total = sum(row["label"] == "no" for row in ROWS)
    for examples in (made.valid, made.test):
        found = sum(examples.cells(i)["label"] == "no" for i in range(len(examples)))
        assert abs(found - total / 10) <= 1
    assert (made.train.arrays["side"] == TRAIN).sum() == len(made.train)


def test_a_mistake_leaves_nothing_behind(tmp_path):
    path = written(tmp_path / "cars.csv", ROWS)
    before = sorted(p.name for p in tmp_path.iterdir())
    for settings in (
        {"target": ("labl",)},
        {"split": Split(group="nobody")},
        {"inputs": ("label",)},
        {"tokenizer": TokenizerSettings(folder="/nowhere")},
    ):
        with pytest.raises(UserError):
            go(tmp_path, [path], **settings)
    with pytest.raises(UserError):
        go(tmp_path, [tmp_path / "missing.csv"])
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def test_a_language_model_of_a_column_validates_on_the_file_given(tmp_path):
    rows = {"train": "one two three four five six seven", "valid": "eight nine ten eleven twelve"}
    for name, line in rows.items():
        (tmp_path / f"{name}.csv").write_text("id,text\n" + "".join(f"{i},{line} {i}\n" for i in range(40)))
    settings = Data(split=Split(valid_file=(str(tmp_path / "valid.csv"),)), inputs=("text",))
    made = prepare([tmp_path / "train.csv"], task="lm", settings=settings, cache=tmp_path / "cache")
    assert "eight" not in made.tokenizer.decode(made.train.ids.tolist())
    heard = made.tokenizer.decode(made.valid.ids.tolist())
    assert "eight nine" in heard and "one two" not in heard and "id,text" not in heard

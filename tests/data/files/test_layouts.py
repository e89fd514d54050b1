"""Layouts that other people's data comes in: each is read as what it is, and its neighbour as what it always was."""

from __future__ import annotations

import random
import wave
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from anyformer.data.files.language_names import are_parallel, language_of, parallel_sides
from anyformer.data.files.path_kinds import kind_of_path
from anyformer.data.files.side_folders import side_of_name
from anyformer.data.gather import Gathered, gather, origin_of
from anyformer.data.settings import Data, Split
from anyformer.data.splits import FREE, TEST, VALID
from anyformer.errors import UserError
from anyformer.tasks.prepare import prepare

WORDS = "fine film with late planes and a dull end that nobody saw coming".split()
CHANCE = random.Random(0)


def pixels(path: Path, ending: str = ".png") -> None:
    from PIL import Image

    path = path.with_suffix(ending)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(len(str(path))).integers(0, 255, (6, 6), dtype=np.uint8)).save(path)


def images(root: Path, *places: str, count: int = 3, ending: str = ".png") -> None:
    for place in places:
        for number in range(count):
            pixels(root / place / f"{number}", ending)


def text(count: int = 8) -> str:
    return " ".join(CHANCE.choice(WORDS) for _ in range(count))


def gathered(path: Path | list[Path], cache: Path, **settings: object) -> Gathered:
    paths = path if isinstance(path, list) else [path]
    return gather(paths, origin_of(paths, None), Data(**settings), cache / "cache")  # type: ignore[arg-type]


def column(found: Gathered, name: str) -> Counter[str]:
    return Counter(found.frame.column(name).to_pylist())


def said(path: Path | list[Path], cache: Path, **settings: object) -> list[str]:
    """What preparing says, line by line."""
    lines: list[str] = []
    prepare(path, settings=Data(**settings), cache=cache / "prepared", log=lines.append)  # type: ignore[arg-type]
    return lines


# ---------------------------------------------------------------- folders of images


@pytest.mark.quick
@pytest.mark.parametrize("ending", [".pgm", ".ppm", ".tif", ".png"])
def test_images_of_every_ending_are_images(ending: str, tmp_path: Path) -> None:
    images(tmp_path / "set", "cat", "dog", ending=ending)
    assert origin_of([tmp_path / "set"], None) == "pictures"
    (tmp_path / "rows.csv").write_text("file,y\n" + "\n".join(f"set/cat/{i}{ending},{i}" for i in range(3)))
    lines = gathered(tmp_path / "rows.csv", tmp_path)
    from anyformer.data.columns.look import look

    assert look(lines.frame, {})["file"].kind == "image"
    # The control: an ending of a text is none of an image.
    assert kind_of_path(tmp_path / "rows.csv") == "table"


@pytest.mark.quick
def test_sides_are_words_of_the_names_of_folders(tmp_path: Path) -> None:
    for root, names in {
        "whole": ("train", "test"), "upper": ("Train", "Test"), "before": ("train_images", "test_images"),
        "behind": ("seg_train", "seg_test"), "set": ("training_set", "test_set"), "year": ("train2017", "val2017"),
    }.items():  # fmt: skip
        images(tmp_path / root, *(f"{name}/{kind}" for name in names for kind in ("cat", "dog")))
        found = gathered(tmp_path / root, tmp_path)
        assert column(found, "label") == {"cat": 6, "dog": 6}
        assert column(found, "split") == {"train": 6, side_of_name(names[1]): 6}, root
    # An archive repeats its folder.
    images(tmp_path / "intel", *(f"seg_{s}/seg_{s}/{kind}" for s in ("train", "test") for kind in ("sea", "street")))
    assert column(gathered(tmp_path / "intel", tmp_path), "split") == {"train": 6, "test": 6}


@pytest.mark.quick
def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    """The control: a side holds class folders; a class holds images."""
    images(tmp_path / "set", "train", "bus", "tram")
    found = gathered(tmp_path / "set", tmp_path)
    assert column(found, "label") == {"train": 3, "bus": 3, "tram": 3} and "split" not in found.frame.names
    images(tmp_path / "deep", "train/steam", "train/diesel", "bus/city", "bus/coach")
    assert column(gathered(tmp_path / "deep", tmp_path), "label") == {"train": 6, "bus": 6}


def test_a_folder_beside_the_sides_is_named_and_no_class(tmp_path: Path) -> None:
    images(tmp_path / "set", *(f"{s}/{kind}" for s in ("train", "test", "extra") for kind in ("cat", "dog")), count=9)
    found = gathered(tmp_path / "set", tmp_path)
    assert column(found, "label") == {"cat": 18, "dog": 18} and column(found, "split") == {"train": 18, "test": 18}
    (remark,) = found.frame.remarks
    assert remark.startswith("folder extra is left out")
    assert f"note     {remark}" in said(tmp_path / "set", tmp_path)


def test_test_images_without_classes_are_not_scored_and_it_is_said(tmp_path: Path) -> None:
    images(tmp_path / "set", "train/cat", "train/dog", "test", count=12)
    found = gathered(tmp_path / "set", tmp_path)
    assert column(found, "label") == {"cat": 12, "dog": 12} and "split" not in found.frame.names
    lines = said(tmp_path / "set", tmp_path)
    assert any(
        "nothing is scored on it" in line and f"predict RUN {tmp_path / 'set' / 'test'}" in line for line in lines
    )
    assert any(line.startswith("split") and "drawn at random" in line for line in lines)


# ---------------------------------------------------------------- tables that name files


def sound(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", ""))
        file.writeframes(np.random.default_rng(len(str(path))).integers(-99, 99, 400).astype("<i2").tobytes())


@pytest.mark.quick
@pytest.mark.parametrize("form", ["{}.png", "{}"])
def test_images_in_a_folder_beside_their_table_are_found(form: str, tmp_path: Path) -> None:
    images(tmp_path / "set", "images", count=12)
    rows = "\n".join(f"{form.format(i)},{'ab'[i % 2]}" for i in range(12))
    (tmp_path / "set" / "labels.csv").write_text(f"file,label\n{rows}")
    found = gathered(tmp_path / "set" / "labels.csv", tmp_path)
    assert found.frame.column("file").to_pylist()[:2] == ["images/0.png", "images/1.png"]
    assert found.frame.remarks[0].startswith("file names files in images")
    with pytest.raises(UserError, match=r"labels\.csv"):
        gathered(tmp_path / "set", tmp_path)  # the folder alone has one folder of images: its table is named


@pytest.mark.quick
def test_numbers_and_words_beside_images_stay_what_they_are(tmp_path: Path) -> None:
    """The control: a cell is the name of a file only where all of the first ones are, each a different one."""
    images(tmp_path / "set", "plots", count=4)
    rows = [f"{i % 4},{'ab'[i % 2]}" for i in range(12)]
    whole = [f"{i},{'ab'[i % 2]}" for i in range(4)]
    (tmp_path / "set" / "counted.csv").write_text("id,label,size\n" + "\n".join(f"{row},{row[0]}.5" for row in whole))
    found = gathered(tmp_path / "set" / "counted.csv", tmp_path)  # all are there, and the table has columns of its own
    assert found.frame.column("id").to_pylist()[:2] == ["0", "1"] and not found.frame.remarks
    for name, cells in {"twice.csv": rows, "lacking.csv": [f"{i},{'ab'[i % 2]}" for i in range(12)]}.items():
        (tmp_path / "set" / name).write_text("level,label\n" + "\n".join(cells))
        found = gathered(tmp_path / "set" / name, tmp_path)
        assert found.frame.column("level").to_pylist()[:3] == ["0", "1", "2"] and not found.frame.remarks


def test_recordings_spread_over_folders_are_found(tmp_path: Path) -> None:
    rows = []
    for number in range(12):
        sound(tmp_path / "set" / f"audio/part{number % 2}" / f"{number}.wav")
        rows.append(f"{number}.wav,{number % 5 + 1},{'ab'[number % 2]}")
    (tmp_path / "set" / "meta.csv").write_text("filename,fold,target\n" + "\n".join(rows))
    cells = gathered(tmp_path / "set" / "meta.csv", tmp_path).frame.column("filename").to_pylist()
    assert cells[:2] == ["audio/part0/0.wav", "audio/part1/1.wav"]
    assert any(
        line.split()[:3] == ["column", "filename", "audio"] for line in said(tmp_path / "set" / "meta.csv", tmp_path)
    )


@pytest.mark.quick
def test_names_of_files_that_are_nowhere_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("file,label\n" + "\n".join(f"pic{i}.png,{'ab'[i % 2]}" for i in range(40)))
    with pytest.raises(UserError, match="no column to learn from") as caught:
        said(tmp_path / "rows.csv", tmp_path)
    assert any("names of images, none of which is there, such as 'pic0.png'" in line for line in caught.value.details)
    # The control: the same few names again and again say something by themselves, also where a folder nearby holds one.
    images(tmp_path / "other", "cat", count=1)
    (tmp_path / "other" / "cat" / "0.png").rename(tmp_path / "other" / "x.png")
    (tmp_path / "icons.csv").write_text(
        "icon,label\n" + "\n".join(f"{'xyz'[i % 3]}.png,{'ab'[i % 2]}" for i in range(40))
    )
    assert any(line.split()[:3] == ["column", "icon", "category"] for line in said(tmp_path / "icons.csv", tmp_path))


# ---------------------------------------------------------------- folders of texts


def texts(root: Path, *places: str, count: int = 12, words: int = 8) -> None:
    for place in places:
        (root / place).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            (root / place / f"{number}_7.txt").write_text(text(words))


def test_texts_in_class_folders_are_classified(tmp_path: Path) -> None:
    texts(tmp_path / "set", "train/pos", "train/neg", "train/unsup", "test/pos", "test/neg")
    (tmp_path / "set" / "README").write_text("about")
    found = gathered(tmp_path / "set", tmp_path)
    assert column(found, "label") == {"pos": 24, "neg": 24} and column(found, "split") == {"train": 24, "test": 24}
    lines = said(tmp_path / "set", tmp_path)
    assert any(line.startswith("task     classify") for line in lines)
    assert any("train/unsup is left out" in line for line in lines)
    assert any(line.split()[:3] == ["column", "text", "text"] for line in lines)
    texts(tmp_path / "flat", "pos", "neg")
    assert column(gathered(tmp_path / "flat", tmp_path), "label") == {"pos": 12, "neg": 12}
    assert origin_of([tmp_path / "flat"], "text") == "text"  # a language model that was asked for reads them all


@pytest.mark.quick
def test_a_tree_of_documents_stays_running_text(tmp_path: Path) -> None:
    """The control: folders in folders, texts beside them, few or long ones."""
    texts(tmp_path / "deep", "guide/first", "guide/second", "api/third")
    texts(tmp_path / "few", "austen", "melville", count=3)
    texts(tmp_path / "long", "austen", "melville", count=5, words=9000)
    texts(tmp_path / "beside", ".", "more", "others")
    texts(tmp_path / "mixed", "one", "two")
    (tmp_path / "mixed" / "one" / "notes.md").write_text("notes")
    for name in ("deep", "few", "long", "beside", "mixed"):
        assert origin_of([tmp_path / name], None) == "text", name


# ---------------------------------------------------------------- parallel text


@pytest.mark.quick
@pytest.mark.parametrize(
    "names", [("train.en", "train.de"), ("train_en.txt", "train_de.txt"), ("en.txt", "de.txt"),
              ("news.eng", "news.deu"), ("corpus-english.txt", "corpus-german.txt"),
              ("train.de-en.de", "train.de-en.en")],
)  # fmt: skip
def test_two_files_named_by_their_languages_are_parallel(names: tuple[str, str], tmp_path: Path) -> None:
    paths = [tmp_path / name for name in names]
    for path in paths:
        path.write_text("".join(f"{text()}\n" for _ in range(20)))
    assert origin_of(paths, None) == "pairs"
    found = gathered(paths, tmp_path)
    assert found.frame.column("source").to_pylist() == paths[0].read_text().splitlines()


@pytest.mark.quick
def test_two_texts_that_are_no_pair_stay_running_text(tmp_path: Path) -> None:
    """The control: other names, names that differ in more than the language, and other numbers of lines."""
    names = {"one.txt": 20, "two.txt": 20, "en.txt": 20, "de.txt": 19, "a_en.txt": 20, "b_de.txt": 20}
    for name, lines in names.items():
        (tmp_path / name).write_text("".join(f"{text()}\n" for _ in range(lines)))
    for one, other in (("one.txt", "two.txt"), ("en.txt", "de.txt"), ("a_en.txt", "b_de.txt")):
        assert not are_parallel(tmp_path / one, tmp_path / other)
        assert origin_of([tmp_path / one, tmp_path / other], None) == "text"
    assert language_of(Path("rows.en.csv")) is None


def test_a_folder_of_parallel_text_has_its_sides(tmp_path: Path) -> None:
    root = tmp_path / "set"
    root.mkdir()
    for side, lines in {"train": 30, "valid": 8, "test_2016": 9}.items():
        for language in ("en", "de"):
            (root / f"{side}.{language}").write_text("".join(f"{text()} {language}\n" for _ in range(lines)))
    found = gathered(root, tmp_path)
    assert found.origin == "pairs" and found.fixed is not None
    assert Counter(found.fixed.tolist()) == {FREE: 30, VALID: 8, TEST: 9}
    assert found.frame.column("source").to_pylist()[0].endswith("de")
    assert found.frame.remarks[0].startswith("de to en")
    # The control: a third language makes it no pair, and a missing file no side.
    (root / "train.fr").write_text("un\n")
    assert parallel_sides(root) is None


# ---------------------------------------------------------------- folders of tables


def table(path: Path, rows: int, *, target: bool = True) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ["x,z,y", *(f"{CHANCE.random():.3f},{CHANCE.random():.3f},{CHANCE.choice('ab')}" for _ in range(rows))]
    path.write_text("".join((line if target else line.rpartition(",")[0]) + "\n" for line in lines))


def test_tables_called_train_and_test_are_sides(tmp_path: Path) -> None:
    for name, rows in {"train.csv": 60, "valid.csv": 11, "test.csv": 12}.items():
        table(tmp_path / "set" / name, rows)
    lines = said(tmp_path / "set", tmp_path, target=("y",))
    assert any(
        "train 60" in line and "valid 11" in line and "test 12" in line and line.endswith("; by file") for line in lines
    )
    # The control: what is asked for goes before names, and files without such names are one table.
    whole = gathered(tmp_path / "set", tmp_path, split=Split(group="z"))
    assert whole.fixed is None and len(whole.frame) == 83
    (tmp_path / "set" / "train.csv").rename(tmp_path / "set" / "first.csv")
    assert gathered(tmp_path / "set", tmp_path).fixed is None
    # And a folder of new rows is taken whole.
    (tmp_path / "set" / "first.csv").rename(tmp_path / "set" / "train.csv")
    assert gather([tmp_path / "set"], "table", Data(), tmp_path / "c", whole=True).fixed is None


def test_a_test_table_without_the_target_is_not_scored_and_it_is_said(tmp_path: Path) -> None:
    table(tmp_path / "set" / "train.csv", 60)
    table(tmp_path / "set" / "test.csv", 20, target=False)
    (tmp_path / "set" / "sample_submission.csv").write_text("id,y\n1,a\n2,b\n")
    lines = said(tmp_path / "set", tmp_path, target=("y",))
    assert any("test.csv has no column y" in line and "predict RUN" in line for line in lines)
    assert any("sample_submission.csv is left out" in line for line in lines)
    assert any(line.startswith("split") and "drawn at random" in line for line in lines)
    # The control: without another column than the target the file is wrong.
    (tmp_path / "set" / "test.csv").write_text("x,y\n1,a\n2,b\n")
    with pytest.raises(UserError, match="'z' is a column of the training rows"):
        gathered(tmp_path / "set", tmp_path, target=("y",))


def test_the_only_column_that_a_test_table_lacks_is_the_target(tmp_path: Path) -> None:
    table(tmp_path / "set" / "train.csv", 60)
    path = tmp_path / "set" / "test.csv"
    path.write_text("x,y\n" + "0.5,a\n" * 9)
    assert gathered(tmp_path / "set", tmp_path).target == ("z",)
    lines = said(tmp_path / "set", tmp_path)
    assert any("no column z, which is therefore the target" in line for line in lines)
    assert any(line.startswith("target   z: 1 number") for line in lines)
    # The control: where two are lacking, or one is named, nothing is concluded.
    path.write_text("x\n" + "0.5\n" * 9)
    assert gathered(tmp_path / "set", tmp_path).target is None
    assert gathered(tmp_path / "set", tmp_path, target=("y",)).target is None


@pytest.mark.parametrize("ending", ["conll", "jsonl", "parquet"])
def test_files_of_other_kinds_have_sides_too(ending: str, tmp_path: Path) -> None:
    root = tmp_path / "set"
    root.mkdir()
    for name, rows in {"en-train": 30, "en-dev": 6, "en-test": 7}.items():
        path = root / f"{name}.{ending}"
        if ending == "conll":
            path.write_text("".join(f"{text(1)} B-PER\n{text(1)} O\n\n" for _ in range(rows)))
        elif ending == "jsonl":
            path.write_text("".join(f'{{"text": "{text()}", "label": "{CHANCE.choice("ab")}"}}\n' for _ in range(rows)))
        else:
            pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
            pq.write_table(pa.table({"x": [CHANCE.random() for _ in range(rows)], "y": [1.5] * rows}), path)
    found = gathered(root, tmp_path)
    assert found.fixed is not None and Counter(found.fixed.tolist()) == {FREE: 30, VALID: 6, TEST: 7}


# ---------------------------------------------------------------- tables of older data sets


def test_numbers_between_runs_of_blanks_are_a_table(tmp_path: Path) -> None:
    numbers = [[CHANCE.uniform(1, 99) for _ in range(4)] for _ in range(50)]
    (tmp_path / "housing.data").write_text("".join(" " + "  ".join(f"{n:8.4f}" for n in row) + "\n" for row in numbers))
    found = gathered(tmp_path / "housing.data", tmp_path).frame
    assert found.names == ["c1", "c2", "c3", "c4"] and len(found) == 50
    assert float(found.column("c3")[7].as_py()) == round(numbers[7][2], 4)
    (tmp_path / "seeds.txt").write_text("".join(("\t\t" if i % 9 == 0 else "\t").join(f"{n:.2f}" for n in row) + "\n"
                                                for i, row in enumerate(numbers)))  # fmt: skip
    assert len(gathered(tmp_path / "seeds.txt", tmp_path).frame) == 50
    (tmp_path / "auto.data").write_text("".join(f'{row[0]:.1f}   {row[1]:.0f}   {row[2]:.1f}\t"ford {row[3]:.0f}"\n'
                                                for row in numbers))  # fmt: skip
    auto = gathered(tmp_path / "auto.data", tmp_path).frame
    assert len(auto.names) == 4 and auto.column("c4")[0].as_py().startswith("ford ")


@pytest.mark.quick
def test_what_other_delimiters_cut_is_not_cut_at_blanks(tmp_path: Path) -> None:
    """The control: empty cells between tabs are cells, and sentences are no rows."""
    (tmp_path / "gaps.tsv").write_text("a\tb\tc\n" + "".join(f"{i}\t{'' if i % 3 else i}\t7\n" for i in range(30)))
    assert gathered(tmp_path / "gaps.tsv", tmp_path).frame.column("b").to_pylist()[:4] == ["0", "", "", "3"]
    (tmp_path / "prose.txt").write_text("".join(f"{text(4)}\n" for _ in range(30)))
    assert kind_of_path(tmp_path / "prose.txt") == "text"
    (tmp_path / "when.csv").write_text("2020-01-01 10:00,1\n" * 20)
    assert gathered(tmp_path / "when.csv", tmp_path).frame.names == ["c1", "c2"]


@pytest.mark.quick
def test_a_header_that_ends_in_delimiters_is_a_header(tmp_path: Path) -> None:
    rows = "".join(f"10/03/2004;{i % 24}.00.00;{i},6;1360;;\n" for i in range(30))
    (tmp_path / "air.csv").write_text("Date;Time;CO(GT);PT08;;\n" + rows)
    frame = gathered(tmp_path / "air.csv", tmp_path).frame
    assert frame.names == ["Date", "Time", "CO(GT)", "PT08", "c5", "c6"] and len(frame) == 30
    # The control: where the last columns hold values, a first row without names for them is no header.
    (tmp_path / "none.csv").write_text("ab;cd;;\n" + "ef;gh;1;2\n" * 30)
    assert gathered(tmp_path / "none.csv", tmp_path).frame.names == ["c1", "c2", "c3", "c4"]


def test_arff_is_read_and_what_it_cannot_say_here_is_refused(tmp_path: Path) -> None:
    head = "% about\n@RELATION iris\n\n@ATTRIBUTE 'sepal length' REAL\n@attribute note string\n"
    head += "@ATTRIBUTE class {'p, 1',q}\n@DATA\n"
    (tmp_path / "x.arff").write_text(head + "% a comment\n5.1, \"it's\", 'p, 1'\n?,plain,q\n1,2\n" + "4,b,q\n" * 20)
    found = gathered(tmp_path / "x.arff", tmp_path).frame
    assert found.names == ["sepal length", "note", "class"] and len(found) == 22
    assert [found.cells(row) for row in (0, 1)] == [
        {"sepal length": "5.1", "note": "it's", "class": "p, 1"}, {"sepal length": "", "note": "plain", "class": "q"},
    ]  # fmt: skip
    assert found.skipped == {"too few fields": 1} and found.skipped_at["too few fields"] == ("x.arff line 11",)
    (tmp_path / "sparse.arff").write_text(head + "{0 5.1, 2 q}\n")
    with pytest.raises(UserError, match=r"sparse\.arff line 8.*write the rows in full"):
        gathered(tmp_path / "sparse.arff", tmp_path)
    (tmp_path / "bag.arff").write_text("@relation x\n@attribute bag relational\n@data\n1\n")
    with pytest.raises(UserError, match=r"bag\.arff line 2"):
        gathered(tmp_path / "bag.arff", tmp_path)

"""train, resume, evaluate, predict, generate and check on one small run, as a script would call them."""

from __future__ import annotations

import csv
import io
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.cli import made
from tests.cli.bad_folders import idx
from tests.cli.trying import done, refused, run, standing_in, tree

TINY = ["--set", "model.stack.depth=1", "--set", "model.stack.width=32", "--set", "model.stack.block.mixer.heads=2"]
STILL = ["--progress", "none"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trained classifier of rows (text, number, category) in `run`."""
    folder = tmp_path_factory.mktemp("verbs")
    rng = random.Random(0)
    rows: list[list[Any]] = []
    for at in range(120):
        good = at % 2 == 0
        rows.append(
            [f"r{at}", made.opinion(rng, good), at % 5, rng.choice(["Rome", "Oslo"]), "Good Film" if good else "bad"]
        )
    made.table(folder / "data.csv", ["id", "text", "stars", "town", "label"], rows)
    with standing_in(folder):
        done("train", "data.csv", "--out", "run", "--steps", "12", "--seed", "3", *TINY, *STILL)
    return folder


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


# ---------------------------------------------------------------- train


def test_json_is_one_object_and_nothing_else(home: Path, tmp_path: Path) -> None:
    with standing_in(home):
        said = done("train", "data.csv", "--out", tmp_path / "run", "--steps", "2", "--json", *TINY, *STILL)
    assert said.out.count("\n") == 1
    assert set(said.json) == {"run", "status", "steps", "task", "metrics"} and said.json["steps"] == 2


def test_quiet_says_the_figures_only(home: Path, tmp_path: Path) -> None:
    with standing_in(home):
        said = done("train", "data.csv", "--out", tmp_path / "run", "--steps", "2", "--quiet", *TINY, *STILL)
    assert said.err == "" and said.out.startswith("test ") and "trivial" in said.out


def test_a_dry_run_says_everything_and_writes_nothing(home: Path) -> None:
    before = tree(home)
    with standing_in(home):
        said = done("train", "data.csv", "--out", "elsewhere/run", "--dry-run", *TINY)
        as_json = done("train", "data.csv", "--dry-run", "--steps", "7", "--json", *TINY).json
    for word in (
        "file ",
        "task ",
        "column ",
        "target ",
        "split ",
        "tokens ",
        "model ",
        "training ",
        "steps ",
        "memory ",
    ):
        assert f"\n{word}" in f"\n{said.out}", said.out
    assert as_json["settings"]["training"]["steps"] == 7 and as_json["plan"]["predicted"]["seconds"] > 0
    assert tree(home) == before


def test_the_same_line_again_offers_to_resume_and_overwrites_nothing(home: Path) -> None:
    before = tree(home)
    with standing_in(home):
        said = run("train", "data.csv", "--out", "run", "--steps", "12")
    assert "anyformer resume run" in refused(said, before, home)


def test_on_a_terminal_the_same_line_asks(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr("anyformer.commands.training.is_terminal", lambda: True)
    monkeypatch.setattr("typer.confirm", lambda text, **settings: asked.append(text) or True)
    with standing_in(home):
        said = done("train", "data.csv", "--out", "run")
    assert asked == ["resume it?"] and "the run is complete" in said.err


def test_a_config_file_gives_the_same_run_again(home: Path, tmp_path: Path) -> None:
    with standing_in(home):
        done("train", "data.csv", "--config", "run/config.yaml", "--out", tmp_path / "again", *STILL)
    for name in ("metrics.jsonl", "config.yaml"):
        assert (tmp_path / "again" / name).read_bytes() == (home / "run" / name).read_bytes(), name


def test_what_is_typed_wins_over_the_file(home: Path, tmp_path: Path) -> None:
    with standing_in(home):
        said = done("train", "data.csv", "--config", "run/config.yaml", "--dry-run", "--json", "--minutes", "0.01",
                    "--set", "training.batch_size=8")  # fmt: skip
    settings = said.json["settings"]["training"]
    assert settings["batch_size"] == 8 and settings["steps"] != 12 and settings["seed"] == 3


def test_strict_categories(home: Path, tmp_path: Path) -> None:
    strict = ["--set", "data.columns.unknown=error", "--types", "town=category,text=skip"]
    with standing_in(home):
        done("train", "data.csv", "--out", tmp_path / "run", "--steps", "2", *strict, *STILL)
    made.table(tmp_path / "new.csv", ["stars", "town"], [[1, "Rome"], [2, "Paris"]])
    before = tree(tmp_path)
    line = refused(run("predict", tmp_path / "run", tmp_path / "new.csv"), before, tmp_path)
    assert "new.csv row 3" in line and "town=Paris" in line


# ---------------------------------------------------------------- predict


def test_predict_gives_the_rows_with_labels_spelled_as_in_the_file(home: Path, tmp_path: Path) -> None:
    long = " ".join(["good"] * 300)
    rows = [["n1", "a great film, really", 3, "Rome", "mine"], ["n2", long, "", "Paris", "mine"]]
    made.table(tmp_path / "new.csv", ["id", "text", "stars", "town", "prediction"], rows)
    said = done("predict", home / "run", tmp_path / "new.csv", "-o", tmp_path / "out.csv")
    found = read(tmp_path / "out.csv")
    assert [row["id"] for row in found] == ["n1", "n2"] and found[0]["text"] == "a great film, really"
    assert {row["prediction"] for row in found} <= {"Good Film", "bad"}
    assert [row["prediction_before"] for row in found] == ["mine", "mine"]
    assert all(0.5 <= float(row["probability"]) <= 1 for row in found)
    assert [row["cut"] for row in found] == ["False", "True"] and "cut " in said.err and "town=Paris" in said.err
    lines = [
        json.loads(line) for line in done("predict", home / "run", tmp_path / "new.csv", "--json").out.splitlines()
    ]
    assert [line["prediction"] for line in lines] == [row["prediction"] for row in found]
    again = run("predict", home / "run", tmp_path / "new.csv", "-o", tmp_path / "out.csv")
    assert again.code == 2 and "not overwritten" in again.err


def test_predict_does_not_lose_a_row(home: Path, tmp_path: Path) -> None:
    """Answers stand beside rows, so a row that cannot be read is an error and not a gap."""
    (tmp_path / "new.csv").write_text("text,stars,town\ngood,1,Rome\nbad,2\n")
    line = refused(run("predict", home / "run", tmp_path / "new.csv"), tree(tmp_path), tmp_path)
    assert "new.csv row 3" in line and "bad=error" not in line


@pytest.mark.parametrize("words, said", [
    (["new.csv", "-o", "x.xlsx"], ".xlsx"), (["nope.csv"], "nope.csv"), (["new.csv", "-o", "no/where.csv"], "mkdir"),
    (["short.csv"], "'town'"), (["empty.csv"], "empty.csv"),
])  # fmt: skip
def test_predict_refuses(home: Path, tmp_path: Path, words: list[str], said: str) -> None:
    (tmp_path / "new.csv").write_text("text,stars,town\ngood,1,Rome\n")
    (tmp_path / "short.csv").write_text("text,stars\ngood,1\n")
    (tmp_path / "empty.csv").write_text("")
    before = tree(tmp_path)
    with standing_in(tmp_path):
        assert said in refused(run("predict", home / "run", *words), before, tmp_path)


# ---------------------------------------------------------------- evaluate, generate


def test_evaluate_says_the_figures_of_the_run_again(home: Path) -> None:
    found = done("evaluate", home / "run", "--json")
    kept = json.loads((home / "run" / "evaluation.json").read_text())
    assert found.out.count("\n") == 1 and found.json["split"] == "test"
    assert found.json["accuracy"] == kept["metrics"]["test"]["accuracy"]
    whole = done("evaluate", home / "run", home / "data.csv", "--json").json
    assert whole["rows"] == 120 and 0 <= whole["accuracy"] <= 1


def test_evaluate_leaves_out_what_it_cannot_judge_and_says_so(home: Path, tmp_path: Path) -> None:
    names, row = ["text", "stars", "town", "label"], ["good", 1, "Rome"]
    made.table(tmp_path / "new.csv", names, [[*row, "bad"], [*row, "Other"], [*row, ""]])
    said = done("evaluate", home / "run", tmp_path / "new.csv", "--json")
    # An unknown label is an answer that the model cannot give: a row without a label is none.
    assert said.json["rows"] == 2 and "left out 1 row" in said.err
    made.table(tmp_path / "odd.csv", names, [[*row, "bed"]])
    made.table(tmp_path / "none.csv", names[:3], [row])
    before = tree(tmp_path)
    assert "did you mean 'bad'" in refused(run("evaluate", home / "run", tmp_path / "odd.csv"), before, tmp_path)
    assert "'label'" in refused(run("evaluate", home / "run", tmp_path / "none.csv"), before, tmp_path)


def test_generate_on_a_run(home: Path, tmp_path: Path) -> None:
    assert "anyformer predict" in refused(run("generate", home / "run", "hello"), tree(tmp_path), tmp_path)
    made.book(tmp_path)
    with standing_in(tmp_path):
        done(
            "train", "book.txt", "--out", "run", "--steps", "2", "--set", "data.tokenizer.max_length=32", *TINY, *STILL
        )
        said = done("generate", "run", "The good", "--max-new-tokens", "5", "--json")
        drafted = done("generate", "run", "The good", "--max-new-tokens", "5", "--json", "--draft", "int8")
        assert drafted.json["texts"] == said.json["texts"] and drafted.json["passes"] <= said.json["new_tokens"]
        assert done("evaluate", "run", "book.txt", "--json").json["perplexity"] > 1
        assert "anyformer generate" in run("predict", "run", "book.txt").errors[0]
    assert said.json["new_tokens"] <= 5 and len(said.json["texts"]) == 1


def test_tags_and_translations_are_written_as_they_were_read(tmp_path: Path) -> None:
    made.tagged(tmp_path)
    made.parallel(tmp_path)
    with standing_in(tmp_path):
        done("train", "words.conll", "--out", "tags", "--steps", "2", *TINY[:4], *STILL)
        done("predict", "tags", "words.conll", "-o", "out.conll")
        assert done("evaluate", "tags", "words.conll", "--json").json["rows"] == made.ROWS
        done(
            "train", "train.en", "train.de", "--out", "pairs", "--steps", "2", "--set", "objective.num_beams=1", *STILL
        )
        (tmp_path / "new.txt").write_text("one two\nthree\n")
        done("predict", "pairs", "new.txt", "-o", "out.txt")
        done("generate", "pairs", "one two", "--max-new-tokens", "4", "--quiet")
    words = [line.split("\t")[0] for line in (tmp_path / "words.conll").read_text().splitlines() if line]
    found = [line.split("\t") for line in (tmp_path / "out.conll").read_text().splitlines() if line]
    assert [word for word, _ in found] == words and {tag for _, tag in found} <= {"O", "B-PER", "I-PER", "B-LOC"}
    assert len((tmp_path / "out.txt").read_text().split("\n")) == 3


# ---------------------------------------------------------------- resume


def test_a_complete_run_says_so(home: Path) -> None:
    said = done("resume", home / "run", "--json")
    assert "the run is complete" in said.err and said.json["status"] == "done"


def test_a_change_of_meaning_is_refused_by_name_and_told_where_allowed(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "run", tmp_path / "run")
    before = tree(tmp_path)
    more = ["--set", "training.steps=16"]
    with standing_in(tmp_path):
        line = refused(run("resume", "run", *more), before, tmp_path)
        assert "training.steps" in line and "12 -> 16" in line and "--allow-change steps" in line
        said = done("resume", "run", *more, "--allow-change", "steps", *STILL)
        assert "12 -> 16" in said.err and "schedule now ends at step 16 (was 12)" in said.err
        assert json.loads((tmp_path / "run" / "run.json").read_text())["step"] == 16
        assert "the run is complete: 16" in done("resume", "run", "--set", "training.save_every=2").err
        said = done("resume", "run", "--steps", "18", "--lr", "2e-4", *STILL)  # typed as an option: allowed
        assert "training.steps 16 -> 18" in said.err and "training.optimizer.lr" in said.err
    steps = [json.loads(line)["step"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert sorted(set(steps) - {0}) == list(range(1, 19))  # step 0 was evaluated: n-grams are fitted before it


@pytest.mark.parametrize("words, said", [
    (["--set", "training.steps=4", "--allow-change", "steps"], "12 are done"),
    (["--steps", "4"], "12 are done"),
    (["--steps", "0"], "steps 0 is below 1"),
    (["--set", "training.minutes=4"], "training.steps=N"),
    (["--set", "training.epochs=4"], "training.steps=N"),
    (["--set", "model.stack.depth=4", "--allow-change", "depth"], "--from"),
    (["--set", "training.optimizer=Muon", "--allow-change", "optimizer"], "--from"),
    (["--set", "training.seed=4", "--allow-change", "seed"], "--from"),
    (["--set", "training.stepps=4"], "did you mean 'training.steps'"),
    (["--allow-change", "steps"], "--set training.steps"),
    (["--set", "training.grad_clip=2", "--allow-change", "steps"], "training.grad_clip"),
    (["--progress", "loud"], "--progress"),
])  # fmt: skip
def test_resume_refuses(home: Path, words: list[str], said: str) -> None:
    before = tree(home)
    with standing_in(home):
        assert said in refused(run("resume", "run", *words), before, home)


@pytest.mark.parametrize("verb", ["resume", "evaluate", "predict", "generate"])
@pytest.mark.parametrize("name", ["nowhere", "empty", "data.csv"])
def test_a_folder_that_is_no_run_is_refused(verb: str, name: str, home: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "data.csv").write_text("a,b\n1,2\n")
    before = tree(tmp_path)
    more = {"predict": ["data.csv"], "generate": ["hello"]}.get(verb, [])
    with standing_in(tmp_path):
        assert name in refused(run(verb, name, *more), before, tmp_path)


# ---------------------------------------------------------------- check


def test_check_looks_at_data_as_train_does(home: Path, tmp_path: Path) -> None:
    before = tree(home)
    with standing_in(home):
        said = done("check", "data.csv", "--types", "stars=category")
        as_json = done("check", "data.csv", "--target", "stars", "--json").json
    assert "stars" in said.out and "category" in said.out and "nothing was written" in said.err
    assert as_json["data"]["target"] == ["stars"] and as_json["data"]["rows"] == 120 and as_json["lines"]
    trained = json.loads((home / "run" / "data.json").read_text())
    plain = done("check", home / "data.csv", "--seed", "3", "--json").json["data"]
    assert plain["fingerprint"] == trained["fingerprint"]
    assert tree(home) == before


def test_check_tells_a_whole_run_from_a_damaged_one(home: Path, tmp_path: Path) -> None:
    facts = done("check", home / "run", "--json").json
    assert facts["problems"] == [] and facts["in use"].startswith("checkpoints/") and facts["status"] == "done"
    shutil.copytree(home / "run", tmp_path / "run")
    newest = sorted((tmp_path / "run" / "checkpoints").iterdir())[-1]
    weights = newest / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    said = run("check", tmp_path / "run")
    assert said.code == 2 and len(said.errors) == 1 and "model.safetensors" in said.errors[0]
    (tmp_path / "run" / "data" / "index.json").unlink(missing_ok=True)
    assert run("check", tmp_path / "run").code == 2


def test_check_of_a_model_folder_and_of_settings(home: Path, tmp_path: Path) -> None:
    best = next((home / "run" / "checkpoints").iterdir())
    assert done("check", best, "--json").json["labels"] == ["Good Film", "bad"]
    said = done("check", home / "run" / "config.yaml", "--json").json
    assert said["task"] == "classify" and said["training.steps"] == 12


def test_pictures_without_labels_are_answered(tmp_path: Path) -> None:
    """A folder of pictures, one picture, and IDX images alone; one that cannot be read is refused, or skipped."""
    photos = made.photos(tmp_path)
    with standing_in(tmp_path):
        done("train", "photos", "--out", "run", "--steps", "2", *STILL)
        (tmp_path / "new").mkdir()
        for at in range(3):
            shutil.copy(photos / "down" / f"{at:03}.png", tmp_path / "new" / f"{at}.png")
        (tmp_path / "new" / "3.png").write_bytes(b"no picture")
        assert "3.png' cannot be read (not a picture)" in run("predict", "run", "new", "-o", "out.csv").err
        said = done("predict", "run", "new", "-o", "out.csv", "--skip-bad-rows")
        found = read(tmp_path / "out.csv")
        assert [Path(row["image"]).name for row in found] == ["0.png", "1.png", "2.png", "3.png"]
        assert {row["prediction"] for row in found[:3]} <= {"down", "across"} and found[3]["prediction"] == ""
        assert "skipped  1 row that cannot be read" in said.err and "3.png" in said.err
        assert len(done("predict", "run", "new/0.png").out.splitlines()) == 2
        (tmp_path / "images-idx3-ubyte").write_bytes(idx((4, 12, 12)))
        assert len(done("predict", "run", "images-idx3-ubyte").out.splitlines()) == 5
        assert len(done("predict", "run", "photos").out.splitlines()) == made.ROWS + 1
        assert done("evaluate", "run", "photos", "--json").json["rows"] == made.ROWS


def test_predictions_of_predictions_and_rows_from_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our columns never take the name of one that is there; `-` is standard input; --json is one object a line."""
    made.flowers(tmp_path)
    with standing_in(tmp_path):
        done("train", "flowers.csv", "--target", "kind", "--out", "run", "--steps", "2", *STILL)
        first = (tmp_path / "flowers.csv").read_text().splitlines()[:4]
        (tmp_path / "0.csv").write_text("\n".join([f"{first[0]},cut", *(f"{line},x" for line in first[1:])]) + "\n")
        for at in range(3):
            done("predict", "run", f"{at}.csv", "-o", f"{at + 1}.csv")
        lines = (tmp_path / "3.csv").read_text().splitlines()
        names = lines[0].split(",")
        assert len(set(names)) == len(names) and names[-2:] == ["prediction", "probability"] and "cut" in names
        assert [len(line.split(",")) for line in lines] == [len(names)] * 4
        for text, words in (("\n".join(first), []), ('{"size": 1, "height": 2, "colour": "red"}\n', []),
                            ("\n".join(first), ["--format", "csv"])):  # fmt: skip
            monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
            rows = [json.loads(line) for line in done("predict", "run", "-", "--json", *words).out.splitlines()]
            assert len(rows) == (3 if "id" in text else 1) and all("prediction" in row for row in rows)
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
        assert "standard input is empty" in run("predict", "run", "-").err
        assert "one object a line" in run("predict", "run", "0.csv", "--json", "-o", "out.csv").err

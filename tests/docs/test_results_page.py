"""docs/results.md holds the figures of the newest CSVs, and the scripts that make them run."""

from __future__ import annotations

import csv
import os
import random
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ElementTree
from argparse import Namespace
from pathlib import Path

import pytest

from benchmarks.scoreboard import recipes, results
from benchmarks.scoreboard.__main__ import choose_sets
from benchmarks.scoreboard.page import BEGIN, END, PAGE, PICTURE, is_ahead, measure_gain, newest_files, render
from benchmarks.scoreboard.published import matthews, pearson, word_perplexity
from benchmarks.scoreboard.sets import SETS
from benchmarks.scoreboard.write_texts import name_spans

ROOT = Path(__file__).parents[2]


def test_the_page_and_its_picture_are_those_of_the_newest_files() -> None:
    """After a run: python -m benchmarks.scoreboard.page"""
    figures, drawn = render(*newest_files())
    assert PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0].strip() == figures.strip()
    assert (PICTURE.read_text(encoding="utf-8") if PICTURE.is_file() else None) == drawn


def test_every_set_has_a_name_of_its_own_and_every_bar_a_recipe() -> None:
    assert len({one.name for one in SETS}) == len(SETS)
    assert [bar.recipe for bar in recipes.BARS if not (ROOT / "recipes" / f"{bar.recipe}.py").is_file()] == []
    assert {name for names in recipes.ARCHIVED.values() for name in names} <= {one.name for one in SETS}
    assert set(recipes.ARCHIVED) <= {bar.recipe for bar in recipes.BARS}


# ---------------------------------------------------------------- a real run


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, results.Row]:
    """A set that is found in a folder of published ones, one that is made, and one whose file is no data."""
    folder = tmp_path_factory.mktemp("scoreboard")
    chance = random.Random(0)
    (folder / "raw" / "tinyshakespeare").mkdir(parents=True)
    words = {"ROMEO": "love night light sweet rose", "KING": "war crown blood sword realm"}
    speeches = [f"{who}:\n{' '.join(chance.choices(words[who].split(), k=9))}\n"
                for who in chance.choices(list(words), k=200)]  # fmt: skip
    (folder / "raw" / "tinyshakespeare" / "input.txt").write_text("\n".join(speeches))
    (folder / "data" / "trec").mkdir(parents=True)
    (folder / "data" / "trec" / "train.csv").write_text("text,label\n")
    with tarfile.open(folder / "data" / "trec.tar.xz", "w:xz") as packed:
        packed.add(folder / "data" / "trec", "trec")
    asked = ["--raw", folder / "raw", "--data", folder / "data", "--only", "speakers", "wine", "trec", "--minutes", 5,
             "--set", "training.steps=20", "--device", "cpu", "--csv", folder / "found.csv",
             "--out", folder / "logs"]  # fmt: skip
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-m", "benchmarks.scoreboard", *map(str, asked)], cwd=ROOT, env=environment,
                          capture_output=True, text=True, timeout=400)  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert "speakers" in done.stdout and sorted(path.name for path in (folder / "logs").iterdir()) == [
        "speakers-0.log", "trec-0.log", "wine-0.log"]  # fmt: skip
    return {row["set"]: row for row in results.read(folder / "found.csv")}


def test_a_set_is_trained_by_the_defaults_and_read_beside_its_baselines(rows: dict[str, results.Row]) -> None:
    for name in ("speakers", "wine"):
        row = rows[name]
        assert tuple(row) == results.COLUMNS and row["task"] == "classify" and row["metric"] == "accuracy"
        assert 0 <= float(row["trivial"]) <= float(row["strong"]) <= 1 and 0 <= float(row["ours"]) <= 1
        assert int(row["steps"]) > 0 and float(row["minutes"]) > 0 and row["strong_name"] and row["model"]
    assert int(rows["wine"]["train_rows"]) == pytest.approx(0.8 * 178, abs=3)


def test_a_set_that_fails_is_a_row_with_its_error(rows: dict[str, results.Row]) -> None:
    assert rows["trec"]["ours"] == "" and "exit 2: error" in rows["trec"]["note"]


def test_a_name_that_is_no_set_stops_before_anything_runs() -> None:
    assert [one.name for one in choose_sets(["wine", "sst2"])] == ["wine", "sst2"]
    with pytest.raises(SystemExit, match="no set is called winee"):
        choose_sets(["winee"])


# ---------------------------------------------------------------- figures


def row_of(name: str, seed: int, metric: str, ours: float | None, strong: float | None, note: str = "") -> results.Row:
    row = dict.fromkeys(results.COLUMNS, "") | {"set": name, "seed": str(seed), "metric": metric, "minutes": "1.0"}
    figures = {"ours": ours, "strong": strong, "trivial": strong}
    return row | {key: "" if value is None else str(value) for key, value in figures.items()} | {"note": note}


def test_the_page_counts_the_sets_on_which_ours_is_at_least_as_good(tmp_path: Path) -> None:
    path = tmp_path / "torch2.0-cpu-2026-01-01-scoreboard.csv"
    for row in (row_of("sst2", 0, "accuracy", 0.8, 0.8), row_of("california", 0, "rmse", 0.43, 0.47),
                row_of("adult", 0, "accuracy", 0.85, 0.87), row_of("wikitext2", 0, "loss", 4.0, None),
                row_of("trec", 0, "accuracy", None, None, "exit 2: error")):  # fmt: skip
        results.append(path, row)
    text, drawn = render([path], None)
    assert "Of 3 sets" in text and "at least as good on **2**, behind it within noise on **0**, and behind" in text
    assert "| **0.800** |" in text and "| **0.43** |" in text and "| 0.850 |" in text and "failed: exit 2" in text
    assert drawn is not None and len(list(ElementTree.fromstring(drawn).iter("{http://www.w3.org/2000/svg}rect"))) == 4
    results.append(path, row_of("california", 0, "rmse", 0.48, 0.47))  # run again, and worse
    assert "ours is at least as good on **1**" in render([path], None)[0]
    close = row_of("california", 0, "rmse", 0.48, 0.47) | {"difference_low": "-0.01", "difference_high": "0.03"}
    results.append(path, close)
    assert (
        "at least as good on **1**, behind it within noise on **1**, and behind it on **1**" in render([path], None)[0]
    )
    results.append(path, close | {"difference_low": "0.002"})
    assert "behind it within noise on **0**" in render([path], None)[0]


def test_a_set_that_was_run_again_later_has_its_later_figures(tmp_path: Path) -> None:
    old, new = (tmp_path / f"torch2.0-cpu-2026-01-0{day}-scoreboard.csv" for day in (1, 2))
    for row in (row_of("sst2", 0, "accuracy", 0.7, 0.8), row_of("trec", 0, "accuracy", 0.9, 0.8)):
        results.append(old, row | {"budget": "2", "workers": "8"})
    results.append(new, row_of("sst2", 0, "accuracy", 0.85, 0.8) | {"budget": "5", "workers": "2"})
    assert results.in_order(tmp_path) == [old, new] and results.newest(tmp_path) == new
    text, _ = render([old, new], None)
    assert "at least as good on **2**" in text and "| **0.850** |" in text and "0.700" not in text
    assert "Run again: SST-2. " in text and "`--minutes 5`" in text and "`--minutes 2`" in text
    assert "| 0.700 |" in render([old], None)[0]  # control


def test_a_baseline_that_had_no_time_is_replaced_by_one_that_had(tmp_path: Path) -> None:
    part = row_of("adult", 0, "accuracy", 0.86, 0.80) | {"strong_name": "boosting on 250 of 26,048 rows"}
    whole = row_of("adult", 0, "accuracy", 0.76, 0.87) | {"strong_name": "boosting"}
    none = row_of("sst2", 0, "accuracy", 0.6, None)
    found = results.with_whole_baselines([part, none], [whole])
    assert (found[0]["ours"], found[0]["strong"], found[0]["strong_name"]) == ("0.86", "0.87", "boosting")
    assert found[1] == none
    assert results.with_whole_baselines([whole], [whole | {"strong": "0.1"}]) == [whole]  # it had the time
    assert results.with_whole_baselines([part], [whole | {"metric": "rmse"}]) == [part]


def test_a_gain_is_a_share_of_the_error_whichever_way_the_metric_goes() -> None:
    assert measure_gain([row_of("a", 0, "accuracy", 0.9, 0.8)]) == pytest.approx(0.5)
    assert measure_gain([row_of("a", 0, "rmse", 1.0, 2.0)]) == pytest.approx(0.5)
    assert measure_gain([row_of("a", 0, "rmse", 3.0, 2.0)]) == pytest.approx(-0.5)
    assert not is_ahead([row_of("a", 0, "rmse", 3.0, 2.0)]) and is_ahead([row_of("a", 0, "accuracy", 0.9, 0.8)])


def test_measures_are_those_of_others(tmp_path: Path) -> None:
    metrics, stats = pytest.importorskip("sklearn.metrics"), pytest.importorskip("scipy.stats")
    truth, said = [0, 0, 1, 1, 1, 0, 1], [0, 1, 1, 1, 0, 0, 1]
    facts = {"facts": {"confusion": {"counts": metrics.confusion_matrix(truth, said).tolist()}}}
    assert matthews(facts, tmp_path) == pytest.approx(metrics.matthews_corrcoef(truth, said))
    points = [[1.0, 1.1], [2.0, 1.7], [3.0, 3.5], [4.0, 3.0]]
    known = {"facts": {"numbers": [{"points": points}]}}
    assert pearson(known, tmp_path) == pytest.approx(stats.pearsonr(*zip(*points, strict=True))[0])
    (tmp_path / "test.txt").write_text("a b\nc d\n")  # 6 words with the ends of lines, 8 bytes: 2 bits each
    evaluation = {"split": "test", "metrics": {"test": {"bits_per_byte": 2.0}}}
    assert word_perplexity(evaluation, tmp_path) == pytest.approx(2 ** (16 / 6))


def test_runs_of_proper_nouns_are_spans() -> None:
    words = [("Ann", "PROPN"), ("Lee", "PROPN"), ("saw", "VERB"), ("Rome", "PROPN")]
    assert name_spans(words).split() == "Ann B-NAME Lee I-NAME saw O Rome B-NAME".split()


def test_a_recipe_meets_its_bar_by_the_mean_of_its_seeds(tmp_path: Path) -> None:
    path = tmp_path / "seeds.csv"
    for seed, value in ((0, 0.45), (1, 0.46), (2, 0.455), (2, 0.47)):  # the last in the place of the one before
        recipes.append(path, {"recipe": "california", "set": "california", "seed": str(seed), "value": str(value)})
    recipes.append(path, {"recipe": "adult", "set": "adult", "seed": "0", "value": "", "note": "error"})
    lines = recipes.table(recipes.read(path))
    assert "| 0.46 | 0.45 to 0.47 | 3 | ≤ 0.459 | missed |" in lines[2] and "failed: error" in lines[3]
    with path.open("a", newline="") as file:
        csv.writer(file).writerow(["california", "california", 2, "", 0.45])
    assert "| met |" in recipes.table(recipes.read(path))[2]


def test_a_recipe_runs_and_gives_a_row_for_each_of_its_sets(tmp_path: Path) -> None:
    for name in ("sst2", "trec"):
        (tmp_path / name).mkdir()
        for side in ("train", "test"):
            lines = [f"{('bad', 'good')[n % 2]} film number {n},{n % 2}" for n in range(40)]
            (tmp_path / name / f"{side}.csv").write_text("\n".join(["text,label", *lines]))
        if name == "sst2":
            with tarfile.open(tmp_path / f"{name}.tar.xz", "w:xz") as packed:
                packed.add(tmp_path / name, name)
    settings = ["training.epochs=null", "training.steps=2"]
    asked = Namespace(raw=tmp_path, data=tmp_path, device="cpu", workers=1, settings=settings)
    first, second = recipes.run_recipe("textcls", 3, asked)
    assert (first["set"], first["seed"], first["metric"], first["steps"]) == ("sst2", "3", "test_accuracy", "2")
    assert 0 <= float(first["value"]) <= 1 and not first["note"]
    assert second["set"] == "trec" and not second["value"] and "trec.tar.xz" in second["note"]  # it has no archive

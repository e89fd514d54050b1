"""`plan --sweep`: one run by the ordinary training; the rest of a sweep over runs that follow a known law."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from anyformer.cli import main
from anyformer.errors import Stopped, UserError
from anyformer.lab import sweep as module
from anyformer.planning.devices import DEVICES
from anyformer.planning.scaling import FittedLaw, ScalingLaw, TrainedRun, fit

TRUE = ScalingLaw("true", 1.5, 60.0, 90.0, 0.4, 0.35)
TOKENS_OF_TEXT = 100_000


@pytest.fixture
def book(tmp_path: Path) -> Path:
    path = tmp_path / "book.txt"
    path.write_text("the cat sat on the mat and looked at the moon\n" * 300)
    return path


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Trainings that take no time and follow the law; which ones were made, and which were only opened again."""
    log: list[str] = []

    def train_one(source: Path, path: Path, width: int, depth: int, steps: int, device: str) -> Any:
        path.mkdir(parents=True)
        (path / "run.json").write_text("{}")
        (path / "data.json").write_text(json.dumps({"parts": {"train": {"tokens": TOKENS_OF_TEXT}}}))
        log.append(f"made {path.name}")
        return path

    def finished(path: Path) -> TrainedRun:
        _, width, _, steps = path.name.split("-")
        size, tokens = 12.0 * int(width) ** 2, float(int(steps) * module.ROWS * module.WINDOW)
        return TrainedRun(size, tokens, TRUE.loss(size, tokens))

    def opened(path: Path, quiet: bool) -> Path:
        log.append(f"opened {path.name}")
        return path

    monkeypatch.setattr(module, "train_one", train_one)
    monkeypatch.setattr(module, "finished", finished)
    monkeypatch.setattr(module, "resume", opened)
    speeds = iter(range(1, 99))  # each time the machine is measured it is busier
    cpu = DEVICES["cpu"]
    monkeypatch.setattr(module, "measure_ceilings", lambda place: replace(cpu, products=cpu.products / next(speeds)))
    return log


def test_a_run_of_the_sweep_is_an_ordinary_run(book: Path, tmp_path: Path) -> None:
    run = module.train_one(book, tmp_path / "run", 16, 1, 3, "cpu")
    found = module.finished(run)
    assert run.facts["status"] == "done" and found.tokens == 3 * module.ROWS * module.WINDOW
    assert found.loss == run.metrics["loss"] and math.isfinite(found.loss)
    built = run.folder.config().model.build(device="cpu")
    assert found.parameters == sum(p.numel() for p in built.parameters())


def test_the_law_of_the_runs_is_found_and_kept(
    book: Path, tmp_path: Path, made: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "sweep"
    assert main(["plan", "--sweep", str(book), "--minutes", "10", "--out", str(out), "--flops", "1e15"]) == 0
    said = capsys.readouterr().out
    kept = json.loads((out / "law.json").read_text())
    assert len(made) == len(kept["runs"]) == len(module.SHAPES) * len(module.LENGTHS)
    assert kept["law"]["alpha"] == pytest.approx(TRUE.alpha, rel=0.02)
    assert kept["law"]["beta"] == pytest.approx(TRUE.beta, rel=0.02)
    steps = json.loads((out / "sweep.json").read_text())["steps"]
    assert [each / steps[0] for each in steps] == list(module.LENGTHS)
    largest = max(kept["runs"], key=lambda run: run["parameters"] * run["tokens"])
    assert kept["better"] == TRUE.better(largest["parameters"], largest["tokens"]) and kept["better"] in said
    assert "1.0e+15 FLOPs" in said and (out / "law.svg").read_text().startswith("<svg")


def test_a_stopped_sweep_goes_on_with_the_same_runs(
    book: Path, tmp_path: Path, made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, train_one = tmp_path / "sweep", module.train_one

    def stopping(*words: Any) -> Any:
        if len(made) == 5:
            raise Stopped("stopped", code=130)
        return train_one(*words)

    with monkeypatch.context() as changed:
        changed.setattr(module, "train_one", stopping)
        with pytest.raises(Stopped, match="same command"):
            module.sweep(book, out, minutes=10, device="cpu", log=lambda line: None)
    monkeypatch.setattr(module, "measure_ceilings", lambda place: DEVICES["h200"])  # a faster moment: the same runs
    whole = module.sweep(book, out, minutes=10, device="cpu", log=lambda line: None)
    first, rest = made[:5], made[5:]
    assert [line.replace("opened", "made") for line in rest[:5]] == first
    assert len(whole.runs) == 16 and not [line for line in rest[5:] if line.startswith("opened")]
    with pytest.raises(UserError, match="holds a sweep"):
        module.sweep(book, out, minutes=20, device="cpu", log=lambda line: None)


@pytest.mark.parametrize(("alpha_term", "better"), [(600.0, "bigger"), (6.0, "longer")])
def test_bigger_or_longer_follows_the_runs(alpha_term: float, better: str, tmp_path: Path) -> None:
    law = ScalingLaw("one", 1.5, alpha_term, 90.0, 0.4, 0.35)
    runs = [TrainedRun(n, t, law.loss(n, t)) for n in (1e4, 4e4, 16e4, 64e4) for t in (1e5, 2e5, 4e5, 8e5)]
    found = module.SweptLaw(runs, fit(runs, resamples=10), 1.0, tmp_path)
    assert found.better == better and found.agreement == 1.0
    assert f"{better}: from" in module.sweep_text(found) and "note" not in module.sweep_text(found)
    assert "read the text 9.0 times" in module.sweep_text(module.SweptLaw(runs, found.fitted, 9.0, tmp_path))


def test_agreement_falls_where_resampled_laws_disagree(tmp_path: Path) -> None:
    runs = [TrainedRun(1e5, 1e5, 3.0)]
    laws = [ScalingLaw("one", 1.5, a, 90.0, 0.4, 0.35) for a in (600.0, 600.0, 6.0, 600.0)]
    fitted = FittedLaw(laws[0], {}, 1, 0.0, laws)
    assert module.SweptLaw(runs, fitted, 1.0, tmp_path).agreement == 0.75


def test_what_cannot_be_swept_is_refused(
    book: Path, tmp_path: Path, made: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for words, fix in (
        (["--sweep", str(book), "--minutes", "0.5", "--out", str(tmp_path / "a")], "too few"),
        (["--sweep", str(tmp_path / "none.txt"), "--out", str(tmp_path / "b")], "not a text file"),
        (["gpt2", "--sweep", str(book)], "give it alone"),
        (["gpt2", "--minutes", "3"], "without --sweep"),
    ):
        assert main(["plan", *words]) != 0
        assert fix in capsys.readouterr().err
    assert made == [] and not (tmp_path / "a").exists() and not (tmp_path / "b").exists()


def test_minutes_buy_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "measure_ceilings", lambda place: DEVICES["cpu"])
    less, more = module.shortest(10, "cpu"), module.shortest(20, "cpu")
    beside = len(module.SHAPES) * len(module.LENGTHS) * module.RUN_SECONDS
    assert more / less == pytest.approx((1200 - beside) / (600 - beside), rel=0.02)
    assert less >= module.FEWEST_STEPS


def test_a_law_without_a_best_size_says_so(tmp_path: Path) -> None:
    runs = [TrainedRun(n, t, 3.0) for n in (1e4, 4e4) for t in (1e5, 2e5)]
    flat = ScalingLaw("flat", 1.0, 30.0, 50.0, -0.1, 0.3)
    intervals = dict.fromkeys(("E", "A", "B", "alpha", "beta"), (0.0, 1.0))
    found = module.SweptLaw(runs, FittedLaw(flat, intervals, 4, 0.1, [flat]), 1.0, tmp_path)
    assert found.to_dict()["optimum"] is None and "more minutes" in module.sweep_text(found, 1e15)

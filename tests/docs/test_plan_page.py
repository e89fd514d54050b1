"""The page on planning: its commands and its Python are run."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from anyformer import preset
from anyformer.commands.planning import plan
from benchmarks.plan_accuracy import PROVEN, compare_h200, kept_cpu_runs
from docs.plan_page import PICTURE, drawn, render
from tests.docs.test_how_to import blocks

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "plan.md"


def test_every_command_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, data = tmp_path / "model", tmp_path / "reviews.csv"
    folder.mkdir()
    (folder / "anyformer.json").write_text(preset("gpt2-tiny").to_json(), encoding="utf-8")
    rows = [f"{'good' if i % 2 else 'bad'} film number {i},{i % 2}" for i in range(60)]
    data.write_text("text,label\n" + "\n".join(rows) + "\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    app = typer.Typer()
    app.command()(plan)
    for line in "".join(blocks(PAGE, "sh")).strip().splitlines():
        verb, *words = shlex.split(line)[1:]
        assert verb == "plan"
        words = [{"FOLDER": str(folder), "DATA": str(data)}.get(word, word) for word in words]
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, (line, done.output, done.exception)
    assert (tmp_path / "plan.html").is_file()


def test_the_python_runs(capsys: pytest.CaptureFixture[str]) -> None:
    for code in blocks(PAGE, "python"):
        exec(compile(code, str(PAGE), "exec"), {})
    assert "'mlp': 56669184" in capsys.readouterr().out


def test_the_page_shows_todays_plan_its_roofline_and_the_kept_measurements() -> None:
    """After a change of the planner: python -m docs.plan_page"""
    page = PAGE.read_text(encoding="utf-8")
    assert render(page) == page and PICTURE.read_text(encoding="utf-8") == drawn()
    assert render(page.replace("124,439,808:", "124,439,809:").replace("| no |", "| yes |")) == page  # it is noticed
    assert "step           5" in page and "| BERT-base masked LM" in page


def test_fitted_rows_are_within_a_fifth_and_the_page_names_those_that_are_not() -> None:
    rows = compare_h200()
    assert len(rows) == 18 and sum(row.fitted for row in rows) == 11
    assert all(0.8 <= row.ratio <= 1.2 for row in rows if row.fitted)
    missed = {row.what for row in rows if not 0.8 <= row.ratio <= 1.2}
    assert missed == {
        "BERT-base masked LM, 64 x 512", "shakespeare_char, 64 x 256", "FT-Transformer, 256 rows of 8 numbers",
        "decode step of gpt2 124M, rows: 1", "decode step of gpt2 124M, rows: 32", "decode step of llama 1.1B, rows: 1",
    }  # fmt: skip


def test_plans_for_a_cpu_are_near_in_ten_runs_and_the_page_shows_the_others() -> None:
    """After `python -m benchmarks.plan_accuracy --csv` into the file that it names: python -m docs.plan_page"""
    rows = kept_cpu_runs()
    missed = {row.what for row in rows if not 0.7 <= row.ratio <= 1.3}
    assert {row.what for row in rows if not row.near} == missed and len(rows) - len(missed) >= PROVEN
    assert {row.kind for row in rows if row.near} == {"training", "decoding"}
    page = PAGE.read_text(encoding="utf-8")
    assert all(f"| {' | '.join(row.cells())} |" in page for row in rows)
    said = page.partition("Not within 30 %")[2].partition(".")[0]
    assert missed and all(f"`{what}`" in said for what in missed) and said.count("`") == 2 * len(missed)

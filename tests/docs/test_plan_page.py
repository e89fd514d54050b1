"""The page on planning: its commands and its Python are run."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from anyformer import preset
from anyformer.commands.planning import plan
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

"""The page on fine-tuning: every command and every example is run as it stands."""

from __future__ import annotations

import csv
import json
import re
import shlex
from pathlib import Path

import pytest

from anyformer.training.run.folder import RunFolder
from tests.cli import made
from tests.cli.trying import run, standing_in

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "fine-tune.md"
SMALL = ["--steps", "3", "--progress", "none", "--set", "training.threads=1", "--set", "training.compile=False"]
SIZES = ["--set", "model.stack.depth=2", "--set", "model.stack.width=32", "--max-length", "32"]


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the page after all of its commands."""
    folder = tmp_path_factory.mktemp("page")
    made.reviews(folder)
    text = made.book(folder).read_text(encoding="utf-8")
    (folder / "notes.txt").write_text(text.replace("said", "wrote"), encoding="utf-8")
    with standing_in(folder):
        for line in (line for block in blocks("sh") for line in block.strip().splitlines()):
            words = shlex.split(line)[1:]
            if words[0] == "train":
                words += SMALL + (SIZES if not {"--from", "gpt2-tiny"} & set(words) else [])
            said = run(*words)
            assert said.code == 0, (line, said.err.splitlines()[-4:])
    return folder


def test_every_command_of_the_page_runs(home: Path) -> None:
    ends = {path.name: RunFolder.open(path).facts["status"] for path in (home / "runs").iterdir()}
    assert set(ends.values()) == {"done"} and len(ends) == 10
    assert (home / "merged" / "config.json").is_file() and (home / "runs" / "both" / "pretrain").is_dir()
    config = RunFolder.open(home / "runs" / "ulmfit").config()
    assert type(config.training.schedule).__name__ == "Slanted" and type(config.training.unfreeze).__name__ == "Gradual"
    assert RunFolder.open(home / "runs" / "frozen").config().training.freeze == ("embed", "stack.blocks.0")


def test_the_table_of_rates_is_the_one_that_is_kept(home: Path) -> None:
    layers = json.loads((home / "runs" / "ulmfit" / "layers.json").read_text())["layers"]
    shown = [line.split() for block in blocks("text") for line in block.splitlines() if line.startswith("layer ")]
    assert [(row[1], row[3]) for row in shown] == [(layer["layer"], f"{layer['lr'][0]:.4g}") for layer in layers]


def test_the_example_in_python_runs(home: Path) -> None:
    (code,) = blocks("python")
    with standing_in(home):
        found: dict[str, object] = {}
        exec(compile(code, str(PAGE), "exec"), found)
    assert found["model"].spec == found["same"].spec  # type: ignore[attr-defined]


def test_every_setting_that_the_page_names_is_one() -> None:
    from anyformer.training.setup.setting_paths import is_setting

    named = set(re.findall(r"`((?:training|model)\.[\w.]+?)(?:=[^`]*)?`", PAGE.read_text(encoding="utf-8")))
    assert len(named) >= 9 and all(is_setting(path) for path in named), named


def test_the_table_of_methods_is_that_of_the_file() -> None:
    text = PAGE.read_text(encoding="utf-8")
    (name,) = re.findall(r"benchmarks/results/(\S+-ulmfit\.csv)", text)
    with (PAGE.parents[2] / "benchmarks" / "results" / name).open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    labels = {
        "from scratch": "scratch",
        "plain fine-tuning": "plain",
        "ULMFiT's four settings": "ulmfit",
        "LoRA": "lora",
    }
    for label, method in labels.items():
        (line,) = re.findall(rf"^\| {label} \|.*$", text, re.MULTILINE)
        found = [row for row in rows if row["method"] == method]
        said = [f"{float(row['test_accuracy']):.3f}".removeprefix("0") for row in found]
        state = f"{int(found[0]['optimizer_bytes']) / 1e6:.2f} MB"
        said += ["not measured"] * (2 - len(said)) + [f"{int(found[0]['trained_parameters']):,}", state]
        assert [cell.strip() for cell in line.strip("|").split("|")][1:] == said

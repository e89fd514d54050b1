"""The pages on answering questions and on prompting: every command is run as it stands."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from anyformer.data.settings import QuestionSettings
from tests.cli import made
from tests.cli.trying import run, standing_in
from tests.docs.test_training_pages import blocks
from tests.families.parity import quietly, save
from tests.inference.test_shots import writer
from tests.tasks.test_qa import squad, their_bert
from tests.training.nursery import Nursery

DOCS = Path(__file__).parents[2] / "docs" / "how-to"
SMALL = ["--steps", "3", "--progress", "none"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every file that the pages name."""
    from anyformer.data.tokenizers.tokenizer import train_tokenizer

    folder = tmp_path_factory.mktemp("pages")
    made.facts(folder, 60)
    squad(folder / "squad.json", without=True)
    (folder / "new.csv").write_text("context,question\nAnna lives in Oslo.,Where does Anna live?\n")
    with quietly():
        save(their_bert().bert, folder / "bert")
    train_tokenizer(["Anna lives in Oslo. Where does Ben live?"] * 4, "wordpiece", 96).save(folder / "bert")
    writer("gpt2-tiny").save(folder / "model")
    (table,) = re.findall(r"```\n(question.*?)```", (DOCS / "prompting.md").read_text(), re.DOTALL)
    head, *rows = table.strip().splitlines()
    for name in ("questions.csv", "train.csv"):
        (folder / name).write_text("\n".join([head, *rows * 4]) + "\n")
    return folder


@pytest.mark.parametrize("page", ["question-answering", "prompting"])
def test_every_command_of_the_page_runs(page: str, home: Path) -> None:
    lines = [line for block in blocks(DOCS / f"{page}.md", "sh") for line in block.strip().splitlines()]
    assert len(lines) >= 5
    with standing_in(home):
        for line in lines:
            words = shlex.split(line)[1:]
            said = run(*words, *(SMALL if words[0] == "train" else []))
            assert said.code == 0, (line, said.err.splitlines()[-4:])
    wanted = ["answers.csv", "hf"] if page == "question-answering" else ["table.csv", "table.json"]
    assert all((home / name).exists() for name in wanted)


def test_the_python_of_the_page_runs_after_its_commands(home: Path, nursery: Nursery) -> None:
    (code,) = blocks(DOCS / "question-answering.md", "python")
    if not (home / "runs" / "facts").exists():
        with standing_in(home):
            assert run("train", "facts.csv", "--out", "runs/facts", *SMALL).code == 0
    done = nursery.python(code, home)
    assert done.returncode == 0 and done.stdout.startswith("['"), done.stderr


def test_the_pages_say_what_is_so(home: Path) -> None:
    rows = re.findall(r"^\| `data\.questions\.(\w+)` \| (\d+) \|", (DOCS / "question-answering.md").read_text(), re.M)
    settings = {name: value for name, value in QuestionSettings().to_dict().items() if name != "type"}
    assert {name: int(value) for name, value in rows} == settings
    from anyformer.inference.prompt_rows import TEMPLATE

    assert json.dumps(TEMPLATE).strip('"') in (DOCS / "prompting.md").read_text()

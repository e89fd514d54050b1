"""The commands and examples of the documentation are run as they stand, on a small model."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import re
import shlex
from pathlib import Path

import pytest
import torch

from anyformer.commands import folders as commands
from anyformer.generation import Generation
from tests.cli.trying import run, standing_in
from tests.families.parity import quietly, save
from tests.training.nursery import Nursery

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny GPT-2 of Hugging Face with a tokenizer of its own."""
    from transformers import GPT2Config, GPT2LMHeadModel

    from anyformer.data.tokenizers.tokenizer import train_tokenizer

    words = train_tokenizer(["Once upon a time there was a rose. " * 20], "bpe", 300)
    torch.manual_seed(0)
    config = GPT2Config(n_embd=32, n_layer=6, n_head=8, vocab_size=words.size, n_positions=64)
    with quietly():
        where = save(GPT2LMHeadModel(config), tmp_path_factory.mktemp("docs") / "model")
    words.save(where)
    return where


def blocks(page: Path, kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def test_the_python_of_open_checkpoints_runs(folder: Path, tmp_path: Path, nursery: Nursery) -> None:
    (code,) = blocks(DOCS / "how-to" / "open-checkpoints.md", "python")
    code = code.replace('"path/to/folder"', repr(str(folder)))
    done = nursery.python(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "mine" / "anyformer.json").is_file() and (tmp_path / "theirs" / "config.json").is_file()


def test_the_table_of_generation_settings_is_the_class() -> None:
    page = (DOCS / "how-to" / "generate.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)`( \*)? \| .+ \| (.+) \|$", page, re.MULTILINE)
    assert {name: ast.literal_eval(default) for name, _, default in rows} == {
        field.name: field.default for field in dataclasses.fields(Generation)
    }
    options = set(inspect.signature(commands.generate).parameters)
    assert {name for name, marked, _ in rows if marked} == options & {name for name, _, _ in rows}


def test_the_commands_of_open_checkpoints_run(folder: Path, tmp_path: Path, nursery: Nursery) -> None:
    (commands,) = blocks(DOCS / "how-to" / "open-checkpoints.md", "sh")
    for i, line in enumerate(commands.strip().splitlines()):
        words = [
            str(folder) if w == "FOLDER" else str(tmp_path / str(i)) if w == "NEW" else w
            for w in shlex.split(line, comments=True)
        ]
        done = nursery.command(*words[1:], where=tmp_path)
        assert done.returncode == 0, (line, done.stderr)


def test_the_python_of_generate_runs(folder: Path, tmp_path: Path, nursery: Nursery) -> None:
    code = "\n".join(blocks(DOCS / "how-to" / "generate.md", "python"))
    for name in ("path/to/folder", "path/to/smaller"):
        code = code.replace(f'"{name}"', repr(str(folder)))
    done = nursery.python(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"(19|20)\d\d", done.stdout.splitlines()[-1])


def test_the_commands_of_generate_run(folder: Path, tmp_path: Path) -> None:
    page = DOCS / "how-to" / "generate.md"
    (tmp_path / "book.json").write_text(schema_of(page))
    (commands,) = blocks(page, "sh")
    for line in commands.strip().splitlines():
        words = [str(folder) if word in ("FOLDER", "SMALLER") else word for word in shlex.split(line, comments=True)]
        with standing_in(tmp_path):
            said = run(*words[1:])
        assert said.code == 0, (line, said.err)
        if "book.json" in line:
            assert 1900 <= json.loads(said.out)["year"] <= 2030
        assert ("a pass" in said.err) == ("--lookup" in line or "--draft" in line)


def schema_of(page: Path) -> str:
    """The schema that the page writes in Python, as JSON."""
    written = re.search(r"^schema = (\{.*?^\})", "\n".join(blocks(page, "python")), re.DOTALL | re.MULTILINE)
    assert written is not None
    return json.dumps(ast.literal_eval(written[1]))

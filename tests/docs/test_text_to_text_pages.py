"""The pages on text to text and on pretraining encoder-decoders: every command and example is run as it stands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from anyformer.training.run.folder import RunFolder
from anyformer.training.setup.setting_paths import is_setting
from tests.cli import made
from tests.cli.test_fine_tune import t5 as t5_folder
from tests.cli.trying import run, standing_in
from tests.training.test_text_to_text import write_table

DOCS = Path(__file__).parents[2] / "docs" / "how-to"
SMALL = ["--steps", "2", "--progress", "none", "--set", "training.threads=1", "--set", "training.compile=False"]
PAGES = {"text-to-text.md": 6, "pretrain-encoder-decoders.md": 8}  # and the runs that it leaves
SETTINGS = {"text-to-text.md": 5, "pretrain-encoder-decoders.md": 3}


def blocks(page: str, kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_the_page_runs(page: str, tmp_path: Path) -> None:
    made.book(tmp_path)
    made.pairs(tmp_path)
    write_table(tmp_path / "tasks.csv")
    for name in ("news", "reviews"):
        made.table(
            tmp_path / f"{name}.csv", ["input", "target"], [[f"{name} text {n}", f"said {n}"] for n in range(40)]
        )
    (tmp_path / "new.csv").write_text("task,input\nSummarize,a storm came. it went.\n")
    (tmp_path / "prompts.tsv").write_text("".join(f"Translate EN-DE: this {n}\tdas {n}\n" for n in range(60)))
    if page == "text-to-text.md":
        t5_folder(tmp_path / "t5")
    with standing_in(tmp_path):
        for line in (line for block in blocks(page, "sh") for line in block.strip().splitlines()):
            words = shlex.split(line)[1:]
            if words[0] == "train":
                words += SMALL + ([] if "--from" in words or "--preset" in words else ["--preset", "t5-small-tiny"])
            said = run(*words)
            assert said.code == 0, (line, said.err.splitlines()[-4:])
    ends = [RunFolder.open(path).facts["status"] for path in (tmp_path / "runs").iterdir()]
    assert ends == ["done"] * PAGES[page]


@pytest.mark.parametrize("page", PAGES)
def test_every_setting_of_the_page_is_one(page: str) -> None:
    named = set(re.findall(r"`((?:data|objective)\.[\w.]+)`", (DOCS / page).read_text(encoding="utf-8")))
    assert len(named) == SETTINGS[page] and all(is_setting(path) for path in named), named


def test_the_example_in_python_runs() -> None:
    (code,) = blocks("pretrain-encoder-decoders.md", "python")
    found: dict[str, object] = {}
    exec(compile(code, "page", "exec"), found)
    assert found["logits"].shape[:2] == (1, 4)  # type: ignore[attr-defined]

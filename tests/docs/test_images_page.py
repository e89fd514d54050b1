"""The page on images and text: its commands are run as they stand, its Python too."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import torch

from tests.cli import made
from tests.cli.trying import run, standing_in
from tests.families.parity import save
from tests.training.nursery import Nursery

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "images-and-text.md"
SMALL = ["--steps", "2", "--progress", "none"]


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every file that the page names, after its commands."""
    folder = tmp_path_factory.mktemp("page")
    made.captions(folder, 30)
    made.captions(folder, 30, questions=True)
    made.colours(folder, 30)
    made.photos(folder)
    (folder / "new-images.csv").write_text("image\nshapes/3.png\n")
    (folder / "unlabelled").mkdir()
    for path in sorted((folder / "photos" / "down").iterdir())[:4]:
        (folder / "unlabelled" / path.name).write_bytes(path.read_bytes())
    with standing_in(folder):
        for line in (line for block in blocks("sh") for line in block.strip().splitlines()):
            words = shlex.split(line)[1:]
            said = run(*words, *(SMALL if words[0] == "train" else []))
            assert said.code == 0, (line, said.err.splitlines()[-4:])
    return folder


def test_the_commands_leave_what_they_say(home: Path) -> None:
    for name in ("told.csv", "rebuilt.png", "belongs.csv", "runs/named/report.html", "runs/warm/report.html"):
        assert (home / name).stat().st_size > 0


def test_the_python_runs(home: Path, tmp_path: Path, nursery: Nursery) -> None:
    from transformers import VisualBertConfig, VisualBertModel

    torch.manual_seed(0)
    config = VisualBertConfig(hidden_size=24, num_hidden_layers=1, num_attention_heads=4, intermediate_size=32,
                              vocab_size=3000, visual_embedding_dim=2048)  # fmt: skip
    folder = save(VisualBertModel(config), tmp_path / "visualbert")
    asks, decodes, opens = blocks("python")
    said = []
    for code in (asks, decodes, opens.replace("path/to/visualbert", str(folder))):
        done = nursery.python(code, home)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout.strip())
    assert said[1:] == ["True", "torch.Size([1, 39, 24])"]

"""A mixture of experts is trained from its name alone, saved, and written with."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import anyformer
from anyformer.cli import main


def test_experts_train_on_a_text_by_their_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name, draw = "mixtral-tiny", random.Random(0)
    words = "the a small old red cat dog bird sees likes follows and but".split()
    book, out = tmp_path / "book.txt", tmp_path / "run"
    book.write_text("\n".join(" ".join(draw.choices(words, k=12)) + "." for _ in range(200)), encoding="utf-8")
    settings = [
        "training.steps=30",
        "training.batch_size=8",
        "data.tokenizer.kind=char",
        "data.tokenizer.max_length=32",
    ]
    given = [word for setting in settings for word in ("--set", setting)]
    assert main(["train", str(book), "--preset", name, "--out", str(out), "--device", "cpu", "--quiet", *given]) == 0
    opened = anyformer.load(out)
    assert any(type(part).__name__ == "Experts" for _, part in opened.spec.walk())
    assert opened.generate("the ", max_new_tokens=5)
    capsys.readouterr()
    assert main(["presets", "--quiet"]) == 0 and name in capsys.readouterr().out.split()

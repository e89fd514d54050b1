"""Every recipe is on the page with the command of its own docstring, and the small ones run here as they stand."""

from __future__ import annotations

import ast
import importlib.util
import json
import lzma
import math
import random
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from anyformer.data.tokenizers.tokenizer import open_tokenizer
from anyformer.presets import preset

ROOT = Path(__file__).parents[2]
RECIPES = sorted(path for path in (ROOT / "recipes").glob("*.py") if path.stem != "common")
PAGE = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")


def opened(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A recipe as a module, with its neighbours in reach as they are for a script."""
    monkeypatch.syspath_prepend(str(ROOT / "recipes"))
    spec = importlib.util.spec_from_file_location(f"recipe_{name}", ROOT / "recipes" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a recipe's `main` with some words behind it, some of its constants made small, and says what it prints."""

    def called(name: str, *words: str | Path, **small: Any) -> str:
        recipe = opened(name, monkeypatch)
        for constant, value in small.items():
            monkeypatch.setattr(recipe, constant, value)
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *map(str, words)])
        recipe.main()
        return capsys.readouterr().out

    return called


@pytest.mark.quick
@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_the_page_has_every_recipe_with_its_own_command(path: Path) -> None:
    (row,) = [line for line in PAGE.splitlines() if f"](../recipes/{path.name})" in line]
    cells = [cell.strip() for cell in row.strip("|").split(" | ")]
    assert len(cells) == 4 and all(cells)
    said = ast.get_docstring(ast.parse(path.read_text())) or ""
    commands = re.findall(r"^ +(python recipes/.*?)(?: +#.*)?$", said, re.MULTILINE)
    assert cells[2].strip("`") in commands, (cells[2], commands)


def test_the_page_names_nothing_that_is_not_there() -> None:
    for link in re.findall(r"\]\((?!http)([^)]+)\)", PAGE):
        assert (ROOT / "docs" / link).exists(), link


def test_associative_recall_runs_to_its_line_of_figures(run: Callable[..., str], tmp_path: Path) -> None:
    small = ["--length", "32", "--steps", "4", "--every", "2", "--batch-size", "8", "--most", "8", "--width", "16"]
    for mixer in ("hyena", "attention"):
        words = ["--mixer", mixer, "--grow", "--out", tmp_path / "lines"]
        figures = json.loads(run("associative_recall", *small, *words, TESTED=40))
        assert figures["mixer"] == mixer and figures["steps"] == 4 and 0 <= figures["accuracy"] <= 1
    assert len((tmp_path / "lines").read_text().splitlines()) == 2


def test_the_answer_of_associative_recall_stands_in_the_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = opened("associative_recall", monkeypatch)
    given, wanted = recipe.sequences(20, 40, 30, torch.Generator().manual_seed(0))
    for row, targets in zip(given.tolist(), wanted.tolist(), strict=True):
        pairs = dict(zip(row[0:-2:2], row[1:-2:2], strict=True))
        assert targets[-1] == pairs[row[-1]]
        seen: set[int] = set()
        for at in range(0, len(row) - 2, 2):
            assert targets[at] == (pairs[row[at]] if row[at] in seen else -100) and targets[at + 1] == -100
            seen.add(row[at])


def test_shots_are_answered_better_than_by_guessing(run: Callable[..., str], tmp_path: Path) -> None:
    """Most of its training: by then the model looks a key up among the examples.

    Without examples it can only guess, one of ten. When it learns to look up differs by a hundred steps with the
    rounding of a machine, so the bar is twice what guessing gives, over all numbers of shots together.
    """
    out = run("shots", "--steps", "420", "--device", "cpu", "--csv", tmp_path / "shots.csv", FILES=5, LINES=4000)
    rows = [dict(zip(words[::2], words[1::2], strict=True)) for words in map(str.split, out.splitlines())]
    accuracy = {int(row["shots"]): float(row["accuracy"]) for row in rows}
    assert list(accuracy) == [0, 1, 2, 4, 8]
    assert (accuracy[1] + accuracy[2] + accuracy[4] + accuracy[8]) / 4 > 0.2
    assert len((tmp_path / "shots.csv").read_text().splitlines()) == 6


def test_ulmfit_compares_its_methods(run: Callable[..., str], tmp_path: Path) -> None:
    chance = random.Random(0)
    for side, count in (("train", 60), ("dev", 20), ("test", 20)):
        lines = [f"{label} {' '.join(chance.choices(['bad dull', 'good fine'][label].split() + ['film', 'plot'], k=6))}"
                 for label in (chance.randrange(2) for _ in range(count))]  # fmt: skip
        with lzma.open(tmp_path / f"stsa.binary.{side}.xz", "wt") as file:
            file.write("\n".join(lines) + "\n")
    (tmp_path / "corpus.txt").write_text("\n".join("the film had a plot and a good cast" for _ in range(200)))
    small = {"model.stack.depth": 1, "model.stack.width": 32, "data.tokenizer.max_length": 16}
    told = run("ulmfit", "--data", tmp_path, "--corpus", tmp_path / "corpus.txt", "--out", tmp_path / "runs", "--csv",
               tmp_path / "lines.csv", "--models", "decoder-mini", "--labels", "40", "--device", "cpu",
               SHORT=SimpleNamespace(corpus_steps=2, texts_steps=2, epochs=0.5, settings=small,
                                     rates=dict.fromkeys(("scratch", "plain", "ulmfit", "lora"), 1e-3)))  # fmt: skip
    lines = {line["method"]: line for line in map(json.loads, told.splitlines())}
    assert list(lines) == ["scratch", "plain", "ulmfit", "lora"]
    assert all(line["labels"] == 40 and 0 <= line["test_accuracy"] <= 1 for line in lines.values())
    assert lines["lora"]["trained_parameters"] < lines["plain"]["trained_parameters"]
    for name, line in lines.items():  # AdamW keeps two numbers for each parameter that learns, and one for each tensor
        beside = line["optimizer_bytes"] - 8 * line["trained_parameters"]
        assert line["peak_rss_mib"] > 50 and beside < 200 * 4
        assert (beside < 0) == (name == "ulmfit")  # half an epoch: its lower layers have not learned yet
    assert len((tmp_path / "lines.csv").read_text().splitlines()) == 5


def test_distill_prints_a_line_for_every_seed_and_who_won(run: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "input.txt").write_text("to be or not to be that is the question whether it is nobler\n" * 60)
    small = SimpleNamespace(teacher=(16, 1), student=(8, 1), teacher_steps=4, student_steps=3, rows=4, length=16,
                            characters=800)  # fmt: skip
    words = ["--data", tmp_path / "input.txt", "--seeds", "0", "1", "--csv", tmp_path / "found.csv"]
    *lines, last = map(json.loads, run("distill", *words, SMALL=small, JUDGED=400).splitlines())
    assert [line["seed"] for line in lines] == [0, 1] and last["of"] == 2
    assert last["won"] == sum(line["distilled"] < line["alone"] for line in lines)
    assert len((tmp_path / "found.csv").read_text().splitlines()) == 3


def test_wikitext2_judges_every_word_once_after_enough_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    recipe = opened("wikitext2", monkeypatch)
    with lzma.open(tmp_path / "a.xz", "wt") as file:
        file.write(" = A <unk> = \n \n the cat sat \n" * 5)
    text = recipe.write_words(tmp_path / "a.xz", tmp_path / "a.txt")
    words = text.read_text().split(" ")
    assert words[:9] == ["=", "A", "<unk>", "=", "<eos>", "<eos>", "the", "cat", "sat"] and len(words) == 50
    tokenizer = open_tokenizer(recipe.write_tokenizer(text, tmp_path / "tokenizer"))
    assert tokenizer is not None and tokenizer.size == 7 and len(tokenizer.encode(text.read_text())) == 50
    model = preset("decoder-mini").build(seed=0).eval()
    predictor = SimpleNamespace(tokenizer=tokenizer, model=model, device=torch.device("cpu"))
    ids = torch.tensor([tokenizer.encode(text.read_text())])

    def nats(start: int, word: int) -> float:
        """What a word costs after those from `start` on."""
        with torch.no_grad():
            return -float(model(ids[:, start:word]).logits[0, -1].log_softmax(-1)[ids[0, word]])

    for context, step in ((64, 16), (16, 4)):
        windows = [max(0, -(-(word - context) // step) * step) for word in range(1, 50)]
        wanted = math.exp(sum(nats(start, word) for word, start in enumerate(windows, 1)) / 49)
        assert recipe.perplexity(predictor, text, context, step) == pytest.approx(wanted, rel=1e-4)
    short = math.exp(sum(nats(word - 1, word) for word in range(1, 50)) / 49)  # control: what is before a word counts
    assert short != pytest.approx(wanted, rel=1e-3)

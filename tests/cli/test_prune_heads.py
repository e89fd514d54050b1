"""`convert --prune-heads`: heads named one by one, or a share of them by what they are worth on a file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import anyformer
from anyformer.checkpoints.folder import save_own
from anyformer.core.head_names import HeadName, every_head
from anyformer.inspection.ablate import ablate
from anyformer.inspection.head_importance import HeadImportance, head_importance
from anyformer.inspection.weakest_heads import weakest_heads
from tests.cli import made
from tests.cli.trying import done, refused, run, tree
from tests.inspection.test_ablate import built, hidden, inputs_of, plain


@pytest.fixture(scope="module")
def reviews(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run on texts of two classes, and its file."""
    folder = tmp_path_factory.mktemp("prune")
    data = made.reviews(folder)
    done("train", data, "--target", "label", "--preset", "encoder-mini-tiny", "--steps", "20", "--out", folder / "run",
         "--progress", "none", "--device", "cpu", "--quiet")  # fmt: skip
    return folder / "run", data


def test_named_heads_go_and_the_folder_opens(tmp_path: Path) -> None:
    model = built("gpt2-tiny")
    save_own(tmp_path / "whole", model.spec, model)
    said = done("convert", tmp_path / "whole", tmp_path / "small", "--prune-heads", "0.1,1.3", "--json").json
    assert "2 heads removed (0.1, 1.3)" in said["notes"][0] and said["to"] == "anyformer"
    smaller = anyformer.load(tmp_path / "small").model
    assert said["parameters"] == sum(p.numel() for p in smaller.parameters())
    inputs = inputs_of(model)
    with ablate(model, heads=[(0, 1), (1, 3)]):
        torch.testing.assert_close(hidden(smaller, *inputs), hidden(model, *inputs), rtol=0, atol=1e-6)
    assert not torch.allclose(hidden(smaller, *inputs), hidden(model, *inputs), atol=1e-4)


def test_a_share_of_the_heads_goes_by_what_they_are_worth(reviews: tuple[Path, Path], tmp_path: Path) -> None:
    run_folder, data = reviews
    whole = anyformer.load(run_folder)
    said = done("convert", run_folder, tmp_path / "small", "--prune-heads", "25%", "--data", data, "--json").json
    expected = weakest_heads(head_importance(whole, data), whole.model, 0.25)
    count = len(every_head(whole.model))
    assert len(expected) == count // 4
    named = ", ".join(str(name) for name in expected[:12])
    assert len(expected) > 1 and f"{len(expected)} heads removed ({named}" in said["notes"][1]
    small = anyformer.load(tmp_path / "small")
    assert len(every_head(small.model)) == count - len(expected)
    scores = [
        done("evaluate", folder, data, "--json", "--device", "cpu").json for folder in (run_folder, tmp_path / "small")
    ]
    assert scores[1]["rows"] == scores[0]["rows"]
    assert small.predict(["good film"])[0] in ("Good film", "bad film")


def test_the_weakest_go_first_and_a_layer_keeps_a_head() -> None:
    model = plain()
    change = {name: float(i) for i, name in enumerate(every_head(model))}
    found = HeadImportance("loss", 1.0, change)
    assert weakest_heads(found, model, 0.25) == [HeadName("", 0, 0), HeadName("", 0, 1)]
    assert weakest_heads(found, model, 0.6) == [HeadName("", 0, 0), HeadName("", 0, 1), HeadName("", 0, 2),
                                                HeadName("", 1, 0)]  # fmt: skip
    grouped = built("llama3-8b-tiny")
    groups = grouped.stack.blocks[0].mixer.sizes
    assert groups.per_group > 1
    change = {name: float(i) for i, name in enumerate(every_head(grouped))}
    gone = weakest_heads(HeadImportance("loss", 1.0, change), grouped, 0.5)
    assert gone[: groups.per_group] == [HeadName("", 0, head) for head in range(groups.per_group)]
    assert len(gone) % groups.per_group == 0


@pytest.mark.parametrize(
    "words, said",
    [
        (["--prune-heads", "3"], "write layer.head, both from 0"),
        (["--prune-heads", "9.0"], "layer 9 is out of range; layers are numbered 0 to"),
        (["--prune-heads", "0.9"], "head 0.9 is out of range"),
        (["--prune-heads", "0.0,0.1,0.2,0.3"], "no head left"),
        (["--prune-heads", "25%"], "add --data FILE"),
        (["--prune-heads", "0%", "--data", "x.csv"], "write 25%"),
        (["--prune-heads", "many%", "--data", "x.csv"], "write 25%"),
        (["--data", "x.csv"], "nothing is measured on it"),
        (["--prune-heads", "0.1", "--data", "x.csv"], "nothing is measured on it"),
        (["--prune-heads", "0.1", "--to", "hf"], "no family there has this network"),
    ],
)
def test_mistakes_are_one_line_and_nothing_is_written(words: list[str], said: str, tmp_path: Path) -> None:
    model = plain()
    save_own(tmp_path / "whole", model.spec, model)
    answer = run("convert", tmp_path / "whole", tmp_path / "new", *words)
    assert answer.code == 2 and len(answer.errors) == 1 and said in answer.errors[0], answer.err
    assert not (tmp_path / "new").exists()


def test_grouped_heads_are_refused_with_the_reason(tmp_path: Path) -> None:
    model = built("llama3-8b-tiny")
    save_own(tmp_path / "whole", model.spec, model)
    before = tree(tmp_path)
    said = run("convert", tmp_path / "whole", tmp_path / "new", "--prune-heads", "0.0")
    assert "share keys and values by" in refused(said, before, tmp_path)

"""Images and text pretrained together: one side hidden at a time, half of the pairs wrong, and a start for others."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment, linprog
from scipy.stats import binomtest, chisquare
from torch import Tensor

from anyformer import UserError, load
from anyformer.data.datasets.rows import RowExamples
from anyformer.data.settings import Data
from anyformer.objectives import Batch, ImageText
from anyformer.objectives.draw import Draw
from anyformer.objectives.image_text import LEVELS, colour_losses
from anyformer.objectives.objective import IGNORED
from anyformer.objectives.transport import cosine_cost, transport_cost, transport_plan
from anyformer.tasks import find
from anyformer.tasks.prepare import prepare
from tests.cli import made
from tests.cli.trying import done, run, standing_in
from tests.tasks_by_name import network
from tests.training.tiny import differing

ASK = ["--task", "image-text", "--inputs", "image", "--inputs", "text", "--types", "text=text"]
SMALL = ["--set", "data.images.crop=0", "--set", "model.stack.width=64", "--progress", "none"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("image-text")
    made.colours(folder)
    with standing_in(folder):
        done("train", "colours.csv", *ASK, "--steps", "100", "--lr", "2e-3", "--out", "run", *SMALL)
    return folder


@pytest.fixture(scope="module")
def rows(home: Path, tmp_path_factory: pytest.TempPathFactory) -> RowExamples:
    """The training rows."""
    own = find("image-text").default_data(None)
    settings = own.replace(inputs=("image", "text"), types=("text=text",), images=own.images.replace(crop=0.0))
    made_ready = prepare([home / "colours.csv"], task="image-text", settings=settings,
                         cache=tmp_path_factory.mktemp("cache") / "rows")  # fmt: skip
    assert isinstance(made_ready.train, RowExamples)
    return made_ready.train


def asked(rows: RowExamples, epoch: int = 0, **settings: Any) -> Batch:
    objective = ImageText(patch=(4, 4), **settings)
    return objective.corrupt(rows.batch(np.arange(len(rows)), Draw(0, epoch)), Draw(0, epoch), rows)


# ---------------------------------------------------------------- what is hidden


def sides_hidden(before: Batch, after: Batch) -> tuple[Tensor, Tensor]:
    """Which rows have hidden or changed words (B,), and which hidden patches (B,)."""
    return (after.targets[:, 1:] != IGNORED).any(1), after.inputs[1][1].any(1)


def test_one_side_is_hidden_at_a_time(rows: RowExamples) -> None:
    before = rows.batch(np.arange(len(rows)))
    for epoch in range(5):
        after = asked(rows, epoch)
        words, patches = sides_hidden(before, after)
        match = after.targets[:, 0] != IGNORED
        assert (words.int() + patches.int() + match.int()).eq(1).all()  # each row is asked one thing
        assert torch.equal(after.inputs[0][~words], before.inputs[0][~words])  # the text is whole elsewhere
        own = after.targets[:, 0] != 1
        assert torch.equal(after.inputs[1][0][own], before.inputs[1][own])  # so is the image, unless it is a wrong one
        both = after.inputs[1][1].clone()
        both[words] = True  # control: a batch with both sides hidden is noticed by the same count
        assert (words.int() + both.any(1).int() + match.int()).gt(1).any()


def test_questions_and_wrong_pairs_come_as_often_as_asked(rows: RowExamples) -> None:
    counts, wrong, pairs = np.zeros(3), 0, 0
    for epoch in range(12):
        after = asked(rows, epoch, words=2.0)
        words, patches = sides_hidden(after, after)
        match = after.targets[:, 0]
        counts += [int(words.sum()), int(patches.sum()), int((match != IGNORED).sum())]
        pairs, wrong = pairs + int((match != IGNORED).sum()), wrong + int((match == 1).sum())
    assert chisquare(counts, counts.sum() * np.array([0.5, 0.25, 0.25])).pvalue > 1e-4
    assert chisquare(counts, counts.sum() * np.ones(3) / 3).pvalue < 1e-6  # control: other shares
    assert wrong < pairs / 2 + 40 and binomtest(wrong, pairs, 0.45).pvalue > 1e-6  # a few others have the same text


def test_a_wrong_pair_is_another_rows_image(rows: RowExamples) -> None:
    before, after = rows.batch(np.arange(len(rows))), asked(rows)
    texts = [tuple(ids.tolist()) for ids in before.inputs[0]]
    images = {image.numpy().tobytes(): text for image, text in zip(before.inputs[1], texts, strict=True)}
    found = torch.nonzero(after.targets[:, 0] == 1)[:, 0].tolist()
    assert found
    for row in found:
        assert images[after.inputs[1][0][row].numpy().tobytes()] != texts[row]


def test_a_row_is_asked_alike_in_any_batch(rows: RowExamples) -> None:
    objective = ImageText(patch=(4, 4))
    whole = asked(rows)
    part = objective.corrupt(rows.batch([5, 9, 11]), Draw(0, 0), rows)
    width = part.targets.shape[1]
    assert torch.equal(part.targets, whole.targets[[5, 9, 11], :width])
    assert torch.equal(part.inputs[1][1], whole.inputs[1][1][[5, 9, 11]])
    assert not torch.equal(asked(rows, 1).targets, whole.targets)


# ---------------------------------------------------------------- losses


@pytest.mark.parametrize("regions", ["pixels", "colours", "nce"])
def test_parts_of_a_batch_add_up(rows: RowExamples, regions: Any) -> None:
    """And each row's loss is that of its own question alone."""
    sizes = load_sizes(rows)
    model = network("encoder-mini", "image-text", sizes).build(seed=0).double().eval()
    objective = ImageText(patch=(4, 4), regions=regions)
    batch = objective.corrupt(rows.batch(np.arange(24)), Draw(0, 0), rows)
    with torch.no_grad():
        whole = objective.terms(model, batch)
        parts = [objective.terms(model, take(batch, at)).rows for at in (slice(0, 7), slice(7, 24))]
    assert torch.allclose(torch.cat(parts), whole.rows, atol=1e-9)
    assert torch.allclose(whole.rows, whole.words + whole.patches + whole.match)
    words, patches = sides_hidden(batch, batch)
    assert (whole.words[~words] == 0).all() and (whole.patches[~patches] == 0).all() and (whole.words[words] > 0).all()


def test_it_starts_at_chance(rows: RowExamples, home: Path) -> None:
    """Words by luck among the vocabulary, patches among those of the image or by their mean, pairs by a coin."""
    sizes = load_sizes(rows)
    objective = ImageText(patch=(4, 4), regions="nce", alignment=0.0)
    model = network("encoder-mini", "image-text", sizes).build(seed=0).eval()
    batch = objective.corrupt(rows.batch(np.arange(len(rows))), Draw(0, 0), rows)
    with torch.no_grad():
        found, learned = (objective.terms(one, batch) for one in (model, load(home / "run").model))
    words, patches = sides_hidden(batch, batch)
    matched = batch.targets[:, 0] != IGNORED
    same = objective.patch_losses(torch.zeros(len(batch), batch.inputs[1][1].shape[1], 48), *batch.inputs[1])
    assert mean_of(same, patches) == pytest.approx(math.log(batch.inputs[1][1].shape[1]))
    assert mean_of(found.words, words) == pytest.approx(math.log(sizes.vocab), rel=0.15)
    assert mean_of(found.patches, patches) == pytest.approx(mean_of(same, patches), rel=0.15)
    pixels = ImageText(patch=(4, 4), alignment=0.0)
    with torch.no_grad():
        rebuilt = pixels.terms(model, batch).patches
    zeros = pixels.patch_losses(torch.zeros(len(batch), batch.inputs[1][1].shape[1], 48), *batch.inputs[1])
    assert mean_of(rebuilt, patches) == pytest.approx(mean_of(zeros, patches), rel=0.05)
    assert mean_of(found.match, matched) == pytest.approx(math.log(2), rel=0.15)
    assert mean_of(learned.words, words) < 0.7 * math.log(sizes.vocab)  # control: a trained model is no longer there


def mean_of(losses: Tensor, chosen: Tensor) -> float:
    return losses[chosen].mean().item()


def load_sizes(rows: RowExamples) -> Any:
    from anyformer.data.preprocess import sizes
    from anyformer.data.sizes import Sizes

    assert rows.facts is not None
    return Sizes.of(sizes(rows.preprocess) | {"vocab": len(rows.facts.ordinary), "length": rows.preprocess.length})


def take(batch: Batch, at: slice) -> Batch:
    tokens, (pixels, hidden) = batch.inputs
    mask = tuple(None if one is None else one[at] for one in batch.named["mask"])
    return Batch((tokens[at], (pixels[at], hidden[at])), batch.targets[at], batch.rows[at], {"mask": mask})


def test_a_colour_between_two_levels_belongs_to_both() -> None:
    """KL is 0 where the prediction is the soft class itself, and that of a uniform guess is known."""
    level = 2 / (LEVELS - 1)
    patches = torch.full((1, 1, 32), -1 + 2.25 * level, dtype=torch.float64)  # between levels 2 and 3, one channel
    soft = torch.zeros(LEVELS, dtype=torch.float64)
    soft[2], soft[3] = 0.75, 0.25
    logits = torch.zeros(1, 1, 32, dtype=torch.float64)
    logits[..., :LEVELS] = soft.clamp(min=1e-30).log()
    assert float(colour_losses(logits, patches, 1)) == pytest.approx(0.0, abs=1e-6)
    uniform = math.log(LEVELS) + 0.75 * math.log(0.75) + 0.25 * math.log(0.25)
    assert float(colour_losses(torch.zeros_like(logits), patches, 1)) == pytest.approx(uniform, abs=1e-9)
    with pytest.raises(UserError, match="larger patches"):
        colour_losses(torch.zeros(1, 1, 12), torch.zeros(1, 1, 12), 3)


# ---------------------------------------------------------------- optimal transport


def exact_cost(cost: np.ndarray) -> float:
    """The least cost by linear programming."""
    rows, columns = cost.shape
    sums = [np.kron(np.eye(rows)[i], np.ones(columns)) for i in range(rows)]
    sums += [np.kron(np.ones(rows), np.eye(columns)[j]) for j in range(columns)]
    return float(linprog(cost.ravel(), A_eq=np.array(sums), b_eq=[1 / rows] * rows + [1 / columns] * columns).fun)


def error_of(plan: Callable[[Tensor, Tensor, Tensor], Tensor]) -> float:
    """The largest distance from the optimum over twenty small cases, some of them padded."""
    generator, worst = torch.Generator().manual_seed(0), 0.0
    for _ in range(20):
        rows, columns = (int(torch.randint(2, 9, (1,), generator=generator)) for _ in range(2))
        vectors = [torch.randn(1, count + 2, 6, generator=generator, dtype=torch.float64) for count in (rows, columns)]
        cost = cosine_cost(*vectors)
        masks = [(torch.arange(count + 2) < count)[None] for count in (rows, columns)]
        found = float((plan(cost, *masks) * cost).sum())
        worst = max(worst, abs(found - exact_cost(cost[0, :rows, :columns].numpy())))
    return worst


def test_transport_is_within_a_thousandth_of_the_optimum() -> None:
    assert error_of(transport_plan) < 1e-3

    def uniform(cost: Tensor, first: Tensor, second: Tensor) -> Tensor:  # control: everything to everywhere
        there = (first[:, :, None] & second[:, None, :]).double()
        return there / there.sum((1, 2), keepdim=True)

    assert error_of(uniform) > 1e-2


def test_transport_between_as_many_is_an_assignment() -> None:
    cost = torch.rand(1, 6, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    every = torch.ones(1, 6, dtype=torch.bool)
    rows, columns = linear_sum_assignment(cost[0].numpy())
    found = float((transport_plan(cost, every, every) * cost).sum())
    assert found == pytest.approx(cost[0].numpy()[rows, columns].mean(), abs=1e-3)


def test_a_plan_has_the_shares_it_must_have_and_none_for_padding() -> None:
    cost, first, second = torch.rand(2, 4, 5), torch.ones(2, 4, dtype=torch.bool), torch.ones(2, 5, dtype=torch.bool)
    first[1, 3:], second[1, 2:] = False, False
    plan = transport_plan(cost, first, second)
    assert torch.allclose(plan.sum(1), second / second.sum(1, keepdim=True), atol=1e-4)
    assert torch.allclose(plan.sum(2), first / first.sum(1, keepdim=True), atol=1e-2)
    assert (plan[1, 3:] == 0).all() and (plan[1, :, 2:] == 0).all()


def test_the_cost_has_the_gradient_of_its_costs() -> None:
    first, second = (torch.randn(1, 4, 5, dtype=torch.float64, requires_grad=True) for _ in range(2))
    every = torch.ones(1, 4, dtype=torch.bool)
    transport_cost(first, second, every, every).sum().backward()
    plan = transport_plan(cosine_cost(first, second).detach(), every, every)
    by_hand = torch.autograd.grad((plan * cosine_cost(first, second)).sum(), first)[0]
    assert first.grad is not None and torch.allclose(first.grad, by_hand)


# ---------------------------------------------------------------- a run


def test_words_are_read_from_the_image(home: Path) -> None:
    """The colour of a sentence can be seen only in the image: chance is that of guessing words by their frequency."""
    found = json.loads((home / "run" / "evaluation.json").read_text())
    metrics, trivial = found["metrics"]["test"], found["baselines"]["trivial"]["metrics"]["loss"]
    assert metrics["loss"] < 0.7 * trivial
    assert metrics["patches_loss"] < 0.5 and set(metrics) >= {"words_loss", "match_loss", "match_accuracy"}


def test_it_starts_a_classifier_and_tells_what_belongs_together(home: Path) -> None:
    with standing_in(home):
        done("train", "colours.csv", "--target", "label", "--types", "text=text", "--from", "run", "--steps", "1",
             "--lr", "1e-12", "--out", "named", "--progress", "none")  # fmt: skip
        before, after = load("run").model.state_dict(), load("named").model.state_dict()
        shared = [name for name in after if name.startswith(("embed.", "stack."))]
        assert shared and all(torch.allclose(before[name], after[name], atol=1e-6) for name in shared)
        row = {"image": "plain/0.png", "text": "this picture is red here"}
        (share,) = load("run").predict([row])
        assert 0 <= share <= 1 and load("run").predict([row, row | {"image": "plain/1.png"}])[0] == share
        judged = done("evaluate", "run", "colours.csv", "--json").json
        assert judged["rows"] == 240 and 0 <= judged["match_accuracy"] <= 1


def test_a_resumed_run_ends_in_the_same_bits(home: Path) -> None:
    settings = ("batch_size=16", "save_every=3", "eval_every=3", "threads=1", "schedule={type: Constant, warmup: 0.0}")
    few = [word for setting in settings for word in ("--set", f"training.{setting}")] + SMALL
    with standing_in(home):
        for out, steps, seed in (("whole", "6", "0"), ("parts", "3", "0"), ("other", "6", "1")):
            done("train", "colours.csv", *ASK, "--steps", steps, "--seed", seed, "--out", out, *few)
        done("resume", "parts", "--set", "training.steps=6", "--allow-change", "steps", "--quiet")
    assert differing(home / "parts", home / "whole") == []
    assert differing(home / "other", home / "whole")  # control


def test_a_row_without_image_or_text_is_left_out(home: Path) -> None:
    names = ["image", "text"]
    rows = [[f"plain/{at}.png", f"this picture is number {at}"] for at in range(12)]
    made.table(home / "gaps.csv", names, [*rows, ["", "nothing to see"], ["plain/1.png", ""]])
    with standing_in(home):
        said = done("train", "gaps.csv", *ASK, "--steps", "1", "--out", "gaps", *SMALL)
    assert "no image" in said.err and "no text" in said.err


def test_a_table_without_one_of_each_is_told(home: Path) -> None:
    with standing_in(home):
        said = run("train", "colours.csv", "--task", "image-text", "--inputs", "image", "--out", "none")
    assert said.code == 2 and "1 columns of images and 0 of text" in said.errors[0]
    assert isinstance(find("image-text").default_data(None), Data)

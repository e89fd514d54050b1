"""`anyformer.train` from Python: a network of one's own, silence, and a run that closes whatever fails at its end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import anyformer
from anyformer import Attention, Block, Model, Norm, Pooled, Stack, Tokens
from anyformer.errors import UserError
from anyformer.tasks import LanguageTask
from anyformer.training import finish, trainer
from anyformer.training import train as job
from anyformer.training.best import BestCheckpoint, EvaluationResult
from tests.cli import made

FEW = {"training.steps": 2, "training.threads": 1, "training.batch_size": 4}
OWN = Model(embed=Tokens(vocab=7), stack=Stack(width=16, depth=1, block=Block(mixer=Attention(heads=2))),
            head=Pooled(classes=2))  # fmt: skip


def test_a_network_of_ones_own_is_fitted_and_quiet_prints_nothing(tmp_path: Path, capfd: Any) -> None:
    run = anyformer.train(made.reviews(tmp_path), model=OWN, target="label", out=tmp_path / "run", device="cpu",
                          settings=FEW, quiet=True)  # fmt: skip
    spec = run.predictor().spec
    assert spec.stack == OWN.stack and spec.embed.vocab > 7 and run.facts["model"] == "own"
    said = capfd.readouterr()
    assert (said.out, said.err) == ("", "")
    anyformer.resume(run.path, quiet=True)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("given", [OWN.stack, 7, ["gpt2"]])
def test_what_is_no_network_is_one_error(given: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="neither a name nor the spec of a network"):
        anyformer.train(made.reviews(tmp_path), model=given, target="label", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


class Counting(Norm):
    """Torch's batch norm, whose running means are buffers."""

    def build(self, width: int) -> nn.Module:
        return OverTokens(width)


class OverTokens(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x.mT).mT


def test_numbers_that_no_checkpoint_would_hold_are_refused_after_the_first_step(tmp_path: Path) -> None:
    spec = OWN.replace(stack=OWN.stack.replace(block=OWN.stack.block.replace(norm=Counting())))
    with pytest.raises(UserError, match="running_mean is a buffer"):
        anyformer.train(made.reviews(tmp_path), model=spec, target="label", out=tmp_path / "run", device="cpu",
                        settings=FEW, quiet=True)  # fmt: skip
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    assert facts["status"] == "failed" and "buffer" in facts["reason"]


def broken(*words: Any, **named: Any) -> Any:
    raise UserError("no more positions", fix="have more")


def trained(folder: Path, monkeypatch: pytest.MonkeyPatch) -> job.Run:
    monkeypatch.chdir(folder)
    data = folder / "book.txt"
    return anyformer.train(data if data.is_file() else made.book(folder), out=folder / "run", device="cpu",
                           settings=FEW, quiet=True)  # fmt: skip


def test_a_final_evaluation_that_fails_closes_the_run_and_leaves_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(finish, "Evaluator", broken)
        with pytest.raises(UserError, match="no more positions"):
            trained(tmp_path, patch)
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    assert facts["status"] == "failed" and facts["step"] == 2
    assert facts["reason"] == "after the last step: no more positions; have more"
    assert anyformer.load(tmp_path / "run").generate("The good", max_new_tokens=2)
    again = anyformer.resume(tmp_path / "run", quiet=True)
    assert again.facts["status"] == "done" and again.facts["reason"] == "" and again.metrics


def test_an_evaluation_between_steps_that_fails_keeps_the_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(LanguageTask, "all_metrics", broken)
        with pytest.raises(UserError, match="no more positions"):
            trained(tmp_path, patch)
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    assert facts["status"] == "failed" and [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()]
    assert anyformer.resume(tmp_path / "run", quiet=True).facts["status"] == "done"


@pytest.mark.parametrize("what", ["report", "sample"])
def test_a_report_or_a_sample_that_fails_is_noted_and_not_fatal(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, name = {"report": (finish, "write_report"), "sample": (LanguageTask, "write_sample")}[what]
    with monkeypatch.context() as patch:
        patch.setattr(module, name, broken)
        assert trained(tmp_path, patch).facts["status"] == "done"
    assert f"{what} failed" in (tmp_path / "run" / "events.jsonl").read_text()
    anyformer.resume(tmp_path / "run", quiet=True)
    assert (tmp_path / "run" / "report.html").is_file()


@pytest.mark.quick
def test_of_equal_metrics_the_lower_loss_is_better() -> None:
    standing = BestCheckpoint("accuracy")
    taken = [standing.take(EvaluationResult(value, loss, 0.0), step) for step, (value, loss) in
             enumerate([(0.5, 1.0), (0.5, 0.9), (0.5, 0.95), (0.4, 0.1), (0.6, 2.0), (0.6, 2.0)])]  # fmt: skip
    assert taken == [True, True, False, False, True, False]
    assert (standing.best, standing.best_step, standing.since) == (0.6, 4, 1)


@pytest.mark.quick
def test_metrics_within_a_standard_error_are_a_tie_that_the_loss_decides() -> None:
    """The luckiest of several checkpoints is not kept; one that is worse beyond the error is not either, however low
    its loss, and ties do not add up to a way down."""
    seen = [(0.80, 0.50), (0.82, 0.60), (0.79, 0.45), (0.77, 0.40), (0.81, 0.44)]
    kept, plain = BestCheckpoint("accuracy"), BestCheckpoint("accuracy")
    taken = [kept.take(EvaluationResult(value, loss, 0.04), step) for step, (value, loss) in enumerate(seen)]
    assert taken == [True, False, True, False, True]
    assert kept.best_step == 4 and kept.top_step == 1 and "standard error" in kept.explain()
    for step, (value, loss) in enumerate([*seen, (0.70, 0.1)]):
        plain.take(EvaluationResult(value, loss, 0.0), step)
    assert plain.best_step == 1 and plain.explain() == ""  # control: without the error, the highest
    far = BestCheckpoint("rmse")
    for step, (value, loss) in enumerate([(2.0, 3.0), (1.0, 2.0), (1.2, 1.0), (1.05, 1.9)]):
        far.take(EvaluationResult(value, loss, 0.1), step)
    assert far.best_step == 3


@pytest.mark.quick
def test_patience_counts_from_the_last_better_loss_too() -> None:
    standing = BestCheckpoint("accuracy")
    for step, (value, loss) in enumerate([(0.5, 1.0), (0.4, 0.9), (0.4, 0.8), (0.4, 0.85), (0.4, 0.9)]):
        standing.take(EvaluationResult(value, loss, 0.0), step)
    assert (standing.best_step, standing.moved_step, standing.since) == (0, 2, 2)


def test_patience_is_passes_and_not_evaluations(tmp_path: Path) -> None:
    """Judged after every step, a table of 40 steps a pass is not given up after nine of them."""
    run = anyformer.train(made.flowers(tmp_path), target="kind", out=tmp_path / "run", device="cpu", quiet=True,
                          settings={"training.steps": 25, "training.eval_every": 1, "training.threads": 1,
                                    "training.optimizer.lr": 1e-30, "training.batch_size": 4})  # fmt: skip
    assert run.facts["step"] == 25


def test_a_run_never_needs_the_folder_it_started_from_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made.reviews(tmp_path)
    anyformer.train("reviews.csv", target="label", out="first", device="cpu", settings=FEW, quiet=True)
    asked = {"target": "label", "start": "first", "device": "cpu", "settings": FEW | {"training.steps": 4}}
    anyformer.train("reviews.csv", out="whole", quiet=True, **asked)
    with monkeypatch.context() as patch:
        patch.setattr(trainer.Session, "train", broken)  # nothing is saved yet
        with pytest.raises(UserError, match="no more positions"):
            anyformer.train("reviews.csv", out="cut", quiet=True, **asked)
    (tmp_path / "first").rename(tmp_path / "away")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert anyformer.resume(tmp_path / "cut", quiet=True).facts["status"] == "done"
    one, other = ((tmp_path / name / "metrics.jsonl").read_bytes() for name in ("whole", "cut"))
    assert one == other
    facts = json.loads((tmp_path / "cut" / "run.json").read_text())["start"]
    assert facts["path"] == str((tmp_path / "first").resolve()) and len(facts["sha256"]) == 64

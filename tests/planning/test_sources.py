"""Everything that can be planned: presets, folders, runs and data, from Python and from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import anyformer
from anyformer import preset
from anyformer.data.reopen import reopen
from anyformer.errors import UserError
from anyformer.planning.devices import find_device
from anyformer.planning.model_plan import plan as plan_model
from anyformer.planning.scaling import LAWS
from anyformer.training.run.folder import RunFolder
from anyformer.training.setup.budget import SHARE, wanted_steps
from anyformer.training.setup.new_run import create
from anyformer.training.setup.request import Request
from tests.cli import made
from tests.cli.trying import done

STEPS, BATCH, LENGTH = 7, 6, 32


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run on a book, ready for its first step."""
    made.book(tmp_path)
    settings = {"training.steps": STEPS, "training.batch_size": BATCH, "training.micro_batch_size": 2,
                "data.tokenizer.max_length": LENGTH}  # fmt: skip
    request = Request([tmp_path / "book.txt"], preset="gpt2-tiny", out=tmp_path / "run", device="cpu",
                      settings=settings)  # fmt: skip
    return create(request, lambda line: None, torch.device("cpu"), weights=False).path


def test_a_run_is_planned_with_its_own_batch_length_and_steps(run: Path) -> None:
    found = anyformer.plan(run, device="cpu")
    assert (found.name, found.batch, found.parts, found.length, found.steps) == ("run", 2, 3, LENGTH, STEPS)
    assert found.train_tokens == STEPS * BATCH * LENGTH
    direct = plan_model(RunFolder.open(run).config().model, batch=2, length=LENGTH, device="cpu")
    assert found.step == direct.step and found.memory == direct.memory
    assert found.train_flops == STEPS * 3 * direct.costs.step.flops
    assert found.hours == pytest.approx(STEPS * (3 * direct.step.total - 2 * direct.step.update) / 3600)
    assert anyformer.plan(str(run), device="cpu") == found  # a path in words is the same
    other = anyformer.plan(run, batch=5, length=8, device="cpu")  # control: what is asked for stands
    assert (other.batch, other.parts, other.length, other.train_tokens) == (5, 1, 8, STEPS * 5 * 8)


def test_the_command_says_the_run_and_what_the_laws_make_of_its_budget(run: Path) -> None:
    said = done("plan", run, "--device", "cpu").out
    found = anyformer.plan(run, device="cpu")
    assert found.train_flops is not None
    assert f"whole run      {STEPS} steps of 3 x {2 * LENGTH}: 1.34 k tokens, {found.train_flops:.3g} FLOPs" in said
    assert f"budget         {found.train_flops:.3g} FLOPs" in said
    facts = done("plan", run, "--device", "cpu", "--json").json
    assert (facts["steps"], facts["parts"], facts["training_tokens"]) == (STEPS, 3, STEPS * BATCH * LENGTH)
    assert facts["scaling"][0]["parameters"] == LAWS["hoffmann"].optimum(found.train_flops).parameters
    assert "budget" not in done("plan", "gpt2-tiny", "--length", "8").out  # control: no run, no budget
    tokens = done("plan", run, "--device", "cpu", "--tokens", "1e6", "--json").json
    assert tokens["training_tokens"] == 1e6 and tokens["steps"] is None


def test_a_run_without_its_rows_still_has_its_settings(run: Path) -> None:
    for path in (run / "data").iterdir():
        path.unlink() if path.is_file() else [inner.unlink() for inner in path.iterdir()]
    found = anyformer.plan(run, length=8, device="cpu")
    assert (found.batch, found.parts, found.steps) == (2, 3, STEPS)


def test_frozen_weights_of_a_run_do_not_learn(run: Path) -> None:
    whole = anyformer.plan(run, device="cpu")
    config = (run / "config.yaml").read_text(encoding="utf-8")
    assert " freeze: null" in config
    (run / "config.yaml").write_text(config.replace(" freeze: null", " freeze: [stack]"), encoding="utf-8")
    fixed = anyformer.plan(run, device="cpu")
    assert fixed.parameters.total == whole.parameters.total
    assert fixed.parameters.learning < whole.parameters.learning and fixed.memory.optimizer < whole.memory.optimizer


def test_data_is_planned_for_the_time_that_its_run_would_take(tmp_path: Path) -> None:
    rows = [f"{'good' if i % 2 else 'bad'} film number {i},{i % 2}" for i in range(60)]
    data = tmp_path / "reviews.csv"
    data.write_text("text,label\n" + "\n".join(rows) + "\n", encoding="utf-8")
    told: list[str] = []
    found = anyformer.plan(data, device="cpu", log=told.append)
    assert found.name == "reviews.csv" and told and found.batch > 1 and found.steps is not None
    kept = create(Request([data], out=tmp_path / "run", device="cpu"), told.append, torch.device("cpu"), weights=False)
    prepared = reopen(kept.cache)
    assert prepared is not None
    wanted = wanted_steps(kept.config(), prepared)
    in_time = int(5 * 60 * (1 - SHARE) / found.seconds_of_step())  # five minutes on a CPU
    assert found.steps == min(wanted, in_time) and found.train_tokens == found.steps * found.tokens
    assert anyformer.plan(data, device="h200").steps == wanted  # a faster device gets to the end
    assert not list(tmp_path.glob("runs")) and json.dumps(found.to_dict())


def test_a_model_folder_is_planned_by_its_spec(tmp_path: Path) -> None:
    (tmp_path / "anyformer.json").write_text(preset("gpt2-tiny").to_json(), encoding="utf-8")
    found = anyformer.plan(tmp_path, length=16, device=find_device("l4"))
    assert found.parameters == anyformer.plan(preset("gpt2-tiny"), length=16).parameters
    assert found.steps is None and found.train_tokens is None and found.hours is None


def test_what_is_nowhere_is_refused() -> None:
    with pytest.raises(UserError, match="gpt2-tiny"):
        anyformer.plan("gpt2-tinny")

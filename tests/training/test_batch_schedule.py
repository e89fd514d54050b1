"""Batch sizes that follow a schedule: each row once an epoch, any step by itself, equal to a loop written by hand."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import anyformer
from anyformer.data.examples import Draw
from anyformer.data.order import Order
from anyformer.errors import UserError
from anyformer.objectives import Causal
from anyformer.presets.decoders import gpt2
from anyformer.training.batch_schedule import Grow
from anyformer.training.duration import WINDOW, Budget, Plan, Throughput, size_at, steps_in_time
from anyformer.training.loader import Steps
from anyformer.training.optim import AdamW, Muon
from anyformer.training.schedule import Constant
from anyformer.training.settings import Training, batch_stages
from anyformer.training.setup.budget import mean_step_size
from anyformer.training.setup.request import replace_paths
from anyformer.training.step import TrainingEngine
from anyformer.training.train import resume
from tests.training.test_prefetch import VOCAB, text_steps
from tests.training.tiny import differing, write_data

# ---------------------------------------------------------------- sizes


@pytest.mark.quick
def test_batches_double_until_the_full_one() -> None:
    assert Grow(start=8, until=0.5).stages(64, 600) == ((0, 8), (100, 16), (200, 32), (300, 64))
    assert Grow(until=300).stages(64, 600) == Grow(start=8, until=300).stages(64, 600)
    assert Grow(start=48, until=100).stages(64, 600) == ((0, 48), (100, 64))
    assert Grow(start=8, until=0.5).resolve(600) == Grow(start=8, until=300)
    assert Grow(start=8, until=0.5).resolve(600).stages(64, 99) == Grow(start=8, until=0.5).stages(64, 600)
    for steps in (1, 2, 3, 7):  # too short for all sizes: still in order, from step 0, to the full batch
        stages = Grow(start=1, until=0.9).stages(64, steps)
        assert stages[0][0] == 0 and stages[-1][1] == 64 and all(a < b for a, b in pairwise(stages))


@pytest.mark.quick
def test_a_part_is_named_and_set_up_in_one_request() -> None:
    """As `--set training.batch_size_schedule=Grow --set training.batch_size_schedule.start=4` has it."""
    named = {
        "batch_size_schedule": "Grow",
        "batch_size_schedule.start": 4,
        "optimizer": "Muon",
        "optimizer.momentum": 0.9,
    }
    made = replace_paths(Training(), named, "training")
    assert made.batch_size_schedule == Grow(start=4) and made.optimizer == Muon(momentum=0.9)
    with pytest.raises(UserError, match="did you mean|no settings inside"):
        replace_paths(Training(), {"batch_size_schedule": "Grown", "batch_size_schedule.start": 4}, "training")


def test_a_start_that_is_no_smaller_is_refused() -> None:
    with pytest.raises(UserError, match="start 64 is not below batch_size 64"):
        Training(batch_size=64, batch_size_schedule=Grow(start=64))
    with pytest.raises(UserError, match="until"):
        Grow(until=0)


# ---------------------------------------------------------------- rows


@given(count=st.integers(1, 90), start=st.integers(1, 8), doublings=st.integers(1, 4), until=st.integers(1, 60),
       ragged=st.booleans(), rest=st.booleans())  # fmt: skip
@settings(max_examples=80, deadline=None)
def test_every_row_once_an_epoch(
    count: int, start: int, doublings: int, until: int, ragged: bool, rest: bool
) -> None:  # fmt: skip
    batch = start * 2**doublings
    lengths = np.random.default_rng(count).integers(1, 50, count) if ragged else None
    made = (count, min(batch, count), 3, lengths, rest, Grow(start=start, until=until).stages(batch, 0))
    order, epochs = Order(*made), {}
    seen: list[tuple[np.ndarray, Draw]] = [order.at(step) for step in range(120)]
    for rows, draw in seen:
        epochs.setdefault(draw.epoch, []).extend(rows.tolist())
    assert list(epochs) == list(range(len(epochs)))  # no epoch is left out, none comes again
    for epoch, rows in list(epochs.items())[:-1]:
        assert len(set(rows)) == len(rows)
        assert len(rows) == count if rest else count - len(rows) < batch, epoch
    # Any step by itself, asked of a new order, is the same: nothing is remembered.
    for step in (0, 7, 63, 119):
        assert Order(*made).at(step)[0].tolist() == seen[step][0].tolist()
    assert all(0 < len(rows) <= order.stage(step).batch for step, (rows, _) in enumerate(seen))


@pytest.mark.quick
def test_without_a_schedule_the_order_is_what_it_was() -> None:
    plain = Order(50, 8, 0)
    for step in (0, 5, 6, 7, 30):
        epoch, inside = divmod(step, 7)
        assert plain.at(step)[0].tolist() == plain.epoch(epoch)[8 * inside : 8 * inside + 8].tolist()
    assert plain.passes(3, 24) == 3.0
    grown = Order(64, 16, 0, sizes=((0, 4), (8, 8), (16, 16)))
    assert [len(grown.at(step)[0]) for step in (0, 7, 8, 15, 16, 40)] == [4, 4, 8, 8, 16, 16]
    assert grown.passes(0, 16) == (8 * 4 + 8 * 8) / 64 and grown.passes(0, 18) == 2.0


# ---------------------------------------------------------------- training


def test_training_equals_a_loop_written_by_hand() -> None:
    """Plain PyTorch over the rows of each step, all at once; the engine takes them three at a time."""
    steps = text_steps()
    sizes = ((0, 2), (3, 4), (6, 8))
    order = Order.of(steps.examples, 8, seed=1, sizes=sizes)
    made = gpt2(16, 1, 2, vocab=VOCAB, length=8, dropout=0.0)
    engine = TrainingEngine(
        made.build(seed=0, dtype=torch.float64), Causal(),
        Training(precision="fp32", threads=1, optimizer=AdamW(lr=0.01, weight_decay=0.0), schedule=Constant(warmup=0)),
        Plan(10),
    )  # fmt: skip
    batches = Steps(steps.examples, order, Causal(), micro=3)
    ours = [float(engine.step(step, batches[step]).loss) for step in range(10)]

    model = made.build(seed=0, dtype=torch.float64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.0, betas=AdamW().betas, eps=AdamW().eps)
    rows = np.concatenate([order.epoch(epoch) for epoch in range(2)])
    losses, at = [], 0
    for step in range(10):
        size = 2 if step < 3 else 4 if step < 6 else 8
        taken, at = rows[at : at + size], at + size
        batch = steps.examples.batch(taken, Draw(1, 0))
        logits = model(*batch.inputs).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(float(loss.detach()))
    assert at <= len(order.epoch(0)) and np.allclose(ours, losses, rtol=1e-6), (ours, losses)
    for (name, a), b in zip(engine.model.named_parameters(), model.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-6, atol=1e-9), name


TABLE = {"training.threads": 1, "model.stack.depth": 1, "model.stack.width": 16, "training.batch_size": 16,
         "training.batch_size_schedule": Grow(start=2, until=0.5), "training.workers": 0}  # fmt: skip


def trained(where: Path, out: str, **more: Any) -> anyformer.Run:
    chosen = TABLE | {name.replace("__", "."): value for name, value in more.items()}
    return anyformer.train(
        where / "table.csv", target="y", out=where / out, device="cpu", quiet=True, settings=chosen
    )  # fmt: skip


def test_a_run_counts_its_epochs_and_resumes_to_the_bit(tmp_path: Path) -> None:
    write_data(tmp_path)
    run = trained(tmp_path, "whole", training__epochs=6, training__save_every=4, training__keep=1000)
    made, rows = run.folder.config().training, run.folder.read_json("data.json")["split"]["train"]
    order = Order(rows, 16, 0, sizes=batch_stages(made, made.steps or 1))
    assert order.passes(0, run.facts["step"] - 1) < 6 <= order.passes(0, run.facts["step"])
    assert run.facts["step"] > 6 * -(-rows // 16)  # the control: full batches alone would need fewer steps
    assert isinstance(made.batch_size_schedule, Grow) and made.batch_size_schedule.until == round(run.facts["step"] / 2)
    copy = tmp_path / "again"
    shutil.copytree(run.path, copy)
    for path in sorted((copy / "checkpoints").iterdir())[2:]:
        shutil.rmtree(path)
    facts = json.loads((copy / "run.json").read_text())
    (copy / "run.json").write_text(json.dumps(facts | {"status": "interrupted", "finished": None, "best_step": None}))
    resume(copy, quiet=True)
    assert differing(run.path, copy) == []


# ---------------------------------------------------------------- time


@pytest.mark.quick
def test_minutes_are_kept_though_steps_become_longer() -> None:
    """A full step takes 0.2 s and the first ones a sixteenth of that, on a machine as quick as in the trial."""
    settings = Training(batch_size=64, batch_size_schedule=Grow(start=4, until=0.8))
    full, seconds = 0.2, 120.0
    budget = Budget(seconds, full, evaluation=0.1, row=0.0, rows=0)
    planned = int(0.85 * seconds / (full * mean_step_size(settings)))
    for believed in (True, False):
        stages = batch_stages(settings, planned)
        sizes = [(first, rows / 64) for first, rows in stages]
        plan, pace, now, done = Plan(planned), Throughput(WINDOW * seconds), 4.0, 0
        while done < plan.total(done):
            took = full * size_at(sizes, done)
            now, done = now + took, done + 1
            # The control takes every step for a full one.
            pace.stepped(size_at(sizes, done - 1) if believed else 1.0, took)
            known = sizes if believed else [(0, 1.0)]
            if (found := budget.corrected(plan, done, now, pace, 10**6, known)) is not None:
                plan.correct(found)
        end = now + budget.closing
        assert (0.9 * seconds <= end <= 1.1 * seconds) is True if believed else len(plan.corrections) > 3, (
            end,
            believed,
        )


@pytest.mark.quick
def test_steps_in_time() -> None:
    sizes = [(0, 0.25), (8, 0.5), (12, 1.0)]
    for seconds in (0.0, 0.3, 1.9, 2.0, 3.1, 4.0, 9.7):
        fit = steps_in_time(seconds, 1.0, 0.1, sizes)
        spent = sum(size_at(sizes, step) + 0.1 for step in range(fit))
        assert spent <= seconds + 1e-9 < spent + size_at(sizes, fit) + 0.1 + 1e-9

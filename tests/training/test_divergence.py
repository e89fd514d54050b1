"""A value that is not finite stops a training before it spoils anything, and is never kept quiet about."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

from anyformer import faults
from anyformer.checkpoints import store
from anyformer.errors import Diverged, NoRoom
from anyformer.objectives import Batch
from anyformer.training.loader import Steps
from anyformer.training.run.folder import RunFolder
from anyformer.training.setup.new_run import create
from anyformer.training.setup.request import Request
from anyformer.training.step import StepResult, TrainingEngine
from anyformer.training.trainer import Session
from anyformer.training.update import ScaledUpdate
from tests.training.nursery import Nursery
from tests.training.tiny import CASES, COMMON, STEPS, logged_lines, write_data

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    faults.arm("")
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("data")
    write_data(where)
    return where


def session_of(case: str, data: Path, out: Path, **other: object) -> Session:
    """A run in this process, without validation rows and without workers, so that it takes a moment."""
    chosen = COMMON | CASES[case].settings | {"training.workers": 0, "training.eval_every": 1000}
    chosen |= {name.replace("__", "."): value for name, value in other.items()}
    target = {"data.target": ("y",)} if case == "table" else {}
    request = Request([data / name for name in CASES[case].files], out=out, device="cpu", settings=chosen | target)
    folder = create(request, lambda line: None, CPU)
    return Session(folder, CPU, lambda line: None, progress="silent")


def sha(model: nn.Module) -> str:
    found = hashlib.sha256()
    for name, parameter in model.named_parameters():
        found.update(name.encode() + parameter.detach().numpy().tobytes())
    return found.hexdigest()


@dataclass
class Poisoned(Steps):
    """Puts a bad number into one row of one part of one step, as a broken cell or pixel would."""

    at: int = 0
    which: int = 0  # of the parts of the step
    value: float = math.nan
    row: int = -1

    def __getitem__(self, step: int) -> list[Batch]:
        micros = super().__getitem__(step)
        if step == self.at:
            batch = micros[self.which]
            batch.inputs[0][1].view(-1)[0] = self.value
            self.row = int(batch.rows[1])
        return micros


@dataclass
class Place:
    """Where the value is put, and what the message must name."""

    case: str
    step: int  # from 1
    says: str
    fault: str = ""
    part: int = 0
    value: float = math.nan
    precision: str = "fp32"


# A pixel, a cell, the loss, a gradient, a weight; at the first step, in the middle and at the last; in a later part of
# an accumulated step; in half precision.
PLACES = [
    Place("image", 1, "the input is not finite"),
    Place("image", 5, "the input is not finite"),
    Place("image", STEPS, "the input is not finite"),
    Place("image", 4, "the input is not finite", precision="fp16"),
    Place("table", 1, "the input is not finite", value=math.inf),
    Place("table", 7, "the input is not finite", value=-math.inf, part=2),
    Place("text", 1, "the loss is not finite", fault="nan-loss@step:1"),
    Place("text", 5, "the loss is not finite", fault="nan-loss@step:15"),  # the third part of the step
    Place("table", 7, "the loss is not finite", fault="nan-loss@step:17", precision="fp16"),
    Place("text", 6, "the gradient of ", fault="nan-gradient@gradients:6"),
    Place("table", STEPS, "the gradient of ", fault=f"nan-gradient@gradients:{STEPS}"),
    Place("text", 6, "the weight ", fault="nan-weight@gradients:5"),  # seen in the step after
]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: f"{place.case}-{place.step}-{place.fault or 'input'}")
def test_nothing_is_spoilt(place: Place, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = session_of(place.case, data, tmp_path / "run", training__precision=place.precision)
    if not place.fault:
        steps = session.steps
        session.steps = Poisoned(steps.examples, steps.order, steps.objective, steps.micro, at=place.step - 1,
                                 which=place.part, value=place.value)  # fmt: skip
    hashes: list[tuple[str, str]] = []
    whole = TrainingEngine.step

    def watched(engine: TrainingEngine, step: int, micros: list[Batch]) -> StepResult:
        before = sha(engine.model)
        step_result = whole(engine, step, micros)
        hashes.append((before, sha(engine.model)))
        return step_result

    faults.arm(place.fault)
    with monkeypatch.context() as patch:
        patch.setattr("anyformer.training.opened_run.measure", lambda *words: measured())
        patch.setattr(TrainingEngine, "step", watched)
        with pytest.raises(Diverged) as error:
            session.run()
    session.folder.unlock()
    message = str(error.value)
    assert error.value.exit_code == 3 and len(message) <= 300
    assert f"step {place.step:,}: {place.says}" in message
    rows = session.steps.order.at(place.step - 1)[0].tolist()
    assert f"rows {rows[:8]}" in message
    if not place.fault:
        assert f"at {session.data.train.place(session.steps.row)};" in message  # type: ignore[attr-defined]
    # The step before moved the weights; this one did not, to the bit.
    assert len(hashes) == place.step and hashes[-1][0] == hashes[-1][1]
    assert all(before != after for before, after in hashes[:-1])
    last = logged_lines(session.folder.path)[-1]
    bad = last["grad_norm"] if place.fault.startswith("nan-gradient") else last["loss"]
    assert last["step"] == place.step and not math.isfinite(bad)  # written down as it was, never filtered
    facts = session.folder.facts
    assert facts["status"] == "failed" and facts["step"] == place.step - 1 and "not finite" in facts["reason"]
    for _, path in store.committed(session.folder.checkpoints):
        assert store.problem(path) == ""


def measured() -> object:
    from anyformer.training.setup.budget import TrialTimes

    return TrialTimes(step=0.01, row=0.0, memory=0, limit=None)


def test_without_the_guard_weights_would_be_spoilt() -> None:
    """The control: an update that asks nothing takes the nan over into the weights."""
    from tests.training.test_engine import engine_for, steps_for

    engine = engine_for("lm")

    def careless(optimizers: list[torch.optim.Optimizer], norm: torch.Tensor, loss: torch.Tensor) -> bool:
        for optimizer in optimizers:
            optimizer.step()
        return True

    engine.update.move = careless  # type: ignore[method-assign]
    faults.arm("nan-gradient@gradients:1")
    engine.step(0, steps_for("lm", 8)[0])
    assert not all(bool(torch.isfinite(p).all()) for p in engine.parameters)


def test_spoilt_weights_are_not_saved(data: Path, tmp_path: Path) -> None:
    """A weight that went bad in the very step after which is saved: seen by the save, before the next step could."""
    session = session_of("text", data, tmp_path / "run")
    faults.arm("nan-weight@gradients:6")
    with pytest.raises(Diverged, match="step 6: the weight .* is not finite"):
        session.run()
    session.folder.unlock()
    assert [step for step, _ in store.committed(session.folder.checkpoints)] == [3]


def test_half_precision_that_never_comes_back_is_stopped() -> None:
    """One overflow lowers the scale and goes on; without end it is a divergence, not a silent standstill."""
    from tests.training.test_engine import engine_for, steps_for

    engine = engine_for("lm", precision="fp16")
    micros = steps_for("lm", 8)[0]
    fine = 0
    for step in range(60):
        faults.arm("nan-gradient@gradients:1")
        before = sha(engine.model)
        if not engine.finite(engine.step(step, micros)):
            break
        assert sha(engine.model) == before
        fine += 1
    assert 20 < fine < 40
    assert isinstance(engine.update, ScaledUpdate) and engine.update.scaler.get_scale() <= 2.0**-14


def test_an_exit_code_of_3_from_a_real_process(data: Path, nursery: Nursery) -> None:
    code, said = nursery.run(CASES["text"].train("bad"), data, "nan-loss@step:14")
    assert code == 3 and said.count("error:") == 1 and "Traceback" not in said
    assert "step 5: the loss is not finite (loss nan)" in said and "weights are those of the step before" in said
    assert "NaN" in (data / "bad" / "metrics.jsonl").read_text().splitlines()[-1]
    code, said = nursery.run(["resume", "bad", "--progress", "none"], data)  # the fault was of a moment
    assert code == 0, said
    assert [line["step"] for line in logged_lines(data / "bad")] == list(range(1, STEPS + 1))


# ---------------------------------------------------------------- memory


def test_a_machine_without_memory_is_told_from_a_bug(data: Path, tmp_path: Path) -> None:
    """Torch's own words when the machine has no more; any other error stays what it is."""
    session = session_of("text", data, tmp_path / "run")
    session.folder.unlock()
    with pytest.raises(NoRoom) as error, session.enough_memory(lambda: session.steps[0]):
        torch.empty(2**50)
    assert "batch 4 x length 24" in str(error.value) and error.value.exit_code == 4 and len(error.value.details) >= 2
    with pytest.raises(RuntimeError, match="shapes"), session.enough_memory(lambda: session.steps[0]):
        torch.zeros(2, 3) @ torch.zeros(2, 3)


def test_out_of_memory_in_the_first_trial_is_said_too(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = session_of("table", data, tmp_path / "run")
    monkeypatch.setattr("anyformer.training.opened_run.measure", lambda *words: torch.empty(2**50))
    with pytest.raises(NoRoom, match="step 1: out of memory with batch 4; try --set training.micro_batch_size=2"):
        session.run()
    session.folder.unlock()
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "failed"
    assert RunFolder.open(tmp_path / "run").facts["step"] == 0

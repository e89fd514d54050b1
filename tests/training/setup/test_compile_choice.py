"""Compiling is decided by what it takes and gives: known from the last time, or assumed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import anyformer
from anyformer.kernels import compile_cache
from anyformer.objectives import Batch
from anyformer.training.setup import compile_choice
from anyformer.training.setup.compile_choice import (
    FOLDER,
    UNKNOWN,
    WARM,
    CompileCost,
    expect_cost,
    explain_choice,
    read_cost,
    record_path,
    write_cost,
)
from anyformer.training.setup.request import Request
from anyformer.training.setup.trial import StepTime, choose_workers
from anyformer.training.train import run_request

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.quick
@pytest.mark.parametrize(("device", "least"), [("cuda", 130), ("cpu", 345)])
def test_an_unknown_model_is_compiled_where_the_run_is_long_enough(device: str, least: float) -> None:
    cost = UNKNOWN[device]
    assert cost.pays(1.01 * least) and not cost.pays(0.99 * least)
    # What is promised: with compiling such a run ends no later than without, even if it gains a third less.
    for eager in (least, 3 * least):
        assert cost.seconds + eager * (1 - (1 - 1 / cost.gain) / 1.5) <= 1.001 * eager


@pytest.mark.quick
def test_the_decision_is_said_with_its_reason() -> None:
    cost = CompileCost(20.0, 1.3)
    assert explain_choice(cost, 40.0) == "compile  off: 40 s of training left, compiling takes about 20 s"
    assert explain_choice(cost, 600.0) == "compile  on: 10 min 00 s of training left, compiling takes about 20 s"
    assert "no faster" in explain_choice(CompileCost(20.0, 0.97), 10**6) and not CompileCost(20.0, 0.97).pays(10**6)


@pytest.mark.quick
def test_what_compiling_took_is_expected_the_next_time(tmp_path: Path) -> None:
    path = tmp_path / "times" / "a.json"
    assert expect_cost(path, CUDA) == UNKNOWN["cuda"] and expect_cost(path, CPU) == UNKNOWN["cpu"]
    write_cost(path, CompileCost(40.0, 1.5))  # from nothing: the next process finds the code in the cache
    assert expect_cost(path, CUDA) == CompileCost(40.0 * WARM, 1.5, is_warm=True)
    write_cost(path, CompileCost(3.0, 1.4, is_warm=True))
    assert expect_cost(path, CUDA) == CompileCost(3.0, 1.4, is_warm=True)


DAMAGED = ["", "{", "[1, 2]", "null", '{"seconds": 1}', '{"seconds": 1, "gain": 2, "other": 3}',
           '{"seconds": "1", "gain": 2}', '{"seconds": -1, "gain": 2}', '{"seconds": NaN, "gain": 2}',
           '{"seconds": 1, "gain": 0}', '{"seconds": 1, "gain": 2, "is_warm": 7}']  # fmt: skip


@pytest.mark.quick
@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_record_is_ignored(text: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    assert read_cost(path) is None and expect_cost(path, CUDA) == UNKNOWN["cuda"]
    path.write_text(json.dumps({"seconds": 1, "gain": 2.0, "is_warm": True}))  # the control
    assert read_cost(path) == CompileCost(1, 2.0, is_warm=True)


@pytest.mark.quick
def test_a_record_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    write_cost(tmp_path / "file" / "a.json", CompileCost(1.0, 1.0))
    write_cost(tmp_path / "no" / "such" / "a.json", CompileCost(1.0, 1.0))


def test_every_model_shape_and_precision_has_its_own_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_choice, "use_private_cache", lambda: tmp_path)
    book = tmp_path / "book.txt"
    book.write_text("the cat sat on the mat. " * 50)
    run = anyformer.train(book, "lm", "gpt2-tiny", out=tmp_path / "run", device="cpu", quiet=True, steps=1,
                          settings={"model.stack.depth": 1, "training.threads": 1, "data.tokenizer.kind": "char",
                                    "training.batch_size": 2, "data.tokenizer.max_length": 8})  # fmt: skip
    config = run.folder.config()
    batch = Batch((torch.zeros(2, 8, dtype=torch.long),), torch.zeros(2, 8, dtype=torch.long), torch.arange(2))
    longer = Batch((torch.zeros(2, 9, dtype=torch.long),), torch.zeros(2, 9, dtype=torch.long), torch.arange(2))
    other = config.replace(training=config.training.replace(precision="bf16"))
    paths = {record_path(config, batch, CPU), record_path(config, longer, CPU), record_path(other, batch, CPU)}
    assert len(paths) == 3 and all(path.parent == tmp_path / FOLDER for path in paths)
    same = config.replace(training=config.training.replace(seed=7, steps=99))
    assert record_path(same, batch, CPU) == record_path(config, batch, CPU)


@pytest.mark.quick
def test_workers_are_used_where_training_would_wait() -> None:
    quick, slow = StepTime(work=0.020, fetch=0.0002), StepTime(work=0.020, fetch=0.050)
    assert choose_workers(quick, CUDA, threads=8, cores=16) == choose_workers(quick, CPU, threads=8, cores=16) == 0
    assert choose_workers(slow, CUDA, threads=8, cores=16) == 4 and choose_workers(slow, CUDA, threads=1, cores=2) == 1
    assert choose_workers(StepTime(0.020, 0.015), CUDA, threads=8, cores=16) == 0  # the thread is quick enough
    assert choose_workers(StepTime(0.020, 0.015), CPU, threads=8, cores=16) == 1
    assert choose_workers(slow, CPU, threads=2, cores=2) == 0  # they would take the cores from training
    assert choose_workers(StepTime(0.0005, 0.001), CUDA, threads=8, cores=16) == 0  # handing over takes longer
    assert slow.total(CUDA, 0) == 0.05 and slow.total(CUDA, 4) == 0.02 and slow.total(CPU, 0) == 0.07


@pytest.mark.alone
def test_the_code_of_the_trial_is_what_training_runs(tmp_path: Path) -> None:
    """Compiling happens once: a second engine in the same process, with the same algorithms, makes no new graph."""
    if not compile_choice.has_compiler(CPU):
        pytest.skip("there is no C++ compiler here")
    from torch._dynamo.utils import counters

    book = tmp_path / "book.txt"
    book.write_text("the cat sat on the mat. " * 100)
    said: list[str] = []
    before = counters["stats"]["unique_graphs"]
    request = Request(
        [book], task="lm", preset="gpt2-tiny", out=tmp_path / "run", device="cpu",
        settings={"training.steps": 4, "training.compile": True, "model.stack.depth": 1, "training.threads": 1,
                  "data.tokenizer.kind": "char", "training.batch_size": 2, "data.tokenizer.max_length": 8},
    )  # fmt: skip
    run_request(request, log=said.append, quiet=True)
    assert counters["stats"]["unique_graphs"] - before == 1
    assert any(line.startswith("compile  took ") for line in said), said
    found = list((compile_cache.use_private_cache() / FOLDER).glob("*.json"))
    assert any(read_cost(path) is not None for path in found)

"""`train --dry-run` prints from the planner: the figures of `plan` for the batches that the run would take."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from anyformer.errors import UserError
from anyformer.planning.devices import DEVICES, H200
from anyformer.planning.model_plan import plan
from anyformer.slots import Network
from anyformer.training.setup import dry_run, planned_run
from tests.cli import made
from tests.cli.trying import run, standing_in

FEW = ("--steps", "3", "--set", "training.threads=1", "--set", "training.compile=False")


def rehearsed(folder: Path, *words: str) -> dict[str, Any]:
    with standing_in(folder):
        said = run("train", *words, *FEW, "--dry-run", "--json")
    assert said.code == 0, said.err
    return json.loads(said.out)


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ceilings from the list: those that are measured differ each time."""
    monkeypatch.setattr(planned_run, "measure_ceilings", lambda place: DEVICES[place])


@pytest.mark.usefixtures("listed")
def test_a_text_is_planned_with_its_own_windows(tmp_path: Path) -> None:
    made.book(tmp_path)
    facts = rehearsed(tmp_path, "book.txt", "--batch-size", "6", "--set", "training.micro_batch_size=2",
                      "--max-length", "64")  # fmt: skip
    found, settings, length = facts["planned"], facts["settings"], 64
    assert (found["rows"], found["parts"], found["steps"], found["length"]) == (2, 3, 3, length)
    direct = plan(Network.from_dict(settings["model"]), batch=2, length=length, device="cpu")
    assert found["parameters"] == facts["parameters"] == direct.parameters.total
    assert found["memory_bytes"] == direct.memory.peak and found["flops_per_token"] == direct.flops["training"]
    assert found["step_seconds"] == pytest.approx(3 * direct.step.total - 2 * direct.step.update)
    assert found["seconds"] == pytest.approx(3 * found["step_seconds"])
    assert found["flops"] == 3 * 3 * direct.costs.step.flops
    other = plan(Network.from_dict(settings["model"]), batch=2, length=length // 2, device="cpu")
    assert found["memory_bytes"] != other.memory.peak  # control: another length costs another amount


@pytest.mark.usefixtures("listed")
def test_frozen_weights_need_no_optimizer(tmp_path: Path) -> None:
    made.table(tmp_path / "rows.csv", ["a", "b", "label"], [[n % 7, n % 3, "pq"[n % 2]] for n in range(60)])
    small = ("rows.csv", "--target", "label", "--preset", "ft-transformer-tiny")
    whole = rehearsed(tmp_path, *small)["planned"]
    fixed = rehearsed(tmp_path, *small, "--set", "training.freeze=[stack]")["planned"]
    assert fixed["parameters"] == whole["parameters"] and fixed["memory_bytes"] < whole["memory_bytes"]


def test_people_read_it_beside_what_was_measured(tmp_path: Path) -> None:
    """With the ceilings of the machine that runs the test."""
    made.book(tmp_path)
    with standing_in(tmp_path):
        said = run("train", "book.txt", *FEW, "--dry-run")
    lines = [line for line in said.out.splitlines() if line.startswith("plan ")]
    assert len(lines) == 3 and "parameters" in lines[0] and "to train: weights" in lines[1]
    assert "for 3 steps, by ceilings of this machine's CPU" in lines[2] and "\nmemory " in said.out


def test_a_part_that_the_planner_does_not_know_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*given: Any, **settings: Any) -> None:
        raise UserError("what a Waves reads is not known", where="plan", fix="give inputs=(...)")

    monkeypatch.setattr(dry_run, "plan_run", unknown)
    made.book(tmp_path)
    facts = rehearsed(tmp_path, "book.txt")
    assert facts["planned"] is None and facts["plan"]["predicted"]["seconds"] > 0
    assert any(line.startswith("plan     none: ") and "Waves" in line for line in facts["lines"])


def test_single_precision_of_a_gpu_is_slower_by_its_data_sheet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its ceilings are measured in half precision; a card without a data sheet is taken for a tenth."""
    gpu = torch.device("cuda")
    monkeypatch.setattr(planned_run, "measure_ceilings", lambda place: H200 if place == "cuda" else DEVICES["cpu"])
    assert planned_run.ceilings_for(gpu, "bf16") == H200
    assert planned_run.ceilings_for(gpu, "fp32").products == pytest.approx(H200.products * 67 / 989)
    monkeypatch.setattr(planned_run, "measure_ceilings", lambda place: replace(H200, title="a new card"))
    assert planned_run.ceilings_for(gpu, "fp32").products == pytest.approx(H200.products / 10)
    assert planned_run.ceilings_for(torch.device("cpu"), "fp32").products == H200.products  # control: as measured

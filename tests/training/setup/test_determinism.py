"""Deterministic algorithms: used where they were asked for, with their price said, and left off everywhere else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from anyformer import cli
from anyformer.training.settings import Training
from anyformer.training.setup.determinism import explain_price, is_deterministic
from anyformer.training.setup.request import Request
from anyformer.training.train import run_request

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.quick
def test_compiled_code_needs_them_on_a_cpu_only() -> None:
    free, asked = Training(), Training(deterministic=True)
    assert not is_deterministic(free, CPU, compiled=False) and is_deterministic(free, CPU, compiled=True)
    assert not is_deterministic(free, CUDA, compiled=False) and not is_deterministic(free, CUDA, compiled=True)
    assert all(is_deterministic(asked, device, compiled=on) for device in (CPU, CUDA) for on in (False, True))


@pytest.mark.quick
def test_the_price_in_words() -> None:
    said = "exact    deterministic algorithms: 11.5 ms a step, 10.0 without; 15% slower"
    assert explain_price(0.0115, 0.010) == said
    assert explain_price(0.009, 0.010).endswith("; 0% slower")  # noise is no gain


@pytest.mark.quick
@pytest.mark.parametrize(("verb", "fixed"), [("train", True), ("resume", True), ("serve", False), ("", False)])
def test_the_workspace_of_cublas_is_fixed_before_torch_is_loaded(
    verb: str, fixed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    cli.fix_workspace([verb])
    assert ("CUBLAS_WORKSPACE_CONFIG" in os.environ) is fixed
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    cli.fix_workspace([verb])
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"  # who set it otherwise keeps that


@pytest.mark.parametrize("asked", [True, False])
def test_a_run_says_what_they_cost_and_leaves_torch_as_it_was(asked: bool, tmp_path: Path) -> None:
    book, said, seen = tmp_path / "book.txt", [], []
    book.write_text("the cat sat on the mat. " * 50)

    def say(line: str) -> None:
        said.append(line)
        seen.append(torch.are_deterministic_algorithms_enabled())

    settings = {"training.steps": 2, "training.deterministic": asked, "model.stack.depth": 1, "training.threads": 1,
                "data.tokenizer.kind": "char", "training.batch_size": 2, "data.tokenizer.max_length": 8}  # fmt: skip
    request = Request([book], task="lm", preset="gpt2-tiny", out=tmp_path / "run", device="cpu", settings=settings)
    run_request(request, log=say, quiet=True)
    assert any(line.startswith("exact    deterministic algorithms: ") for line in said) is asked
    assert seen[-1] is asked and not torch.are_deterministic_algorithms_enabled()

"""A kernel is left out, with one line, where it does not run or does not agree."""

from __future__ import annotations

import logging

import pytest
import torch

from anyformer.kernels import activation, adamw, linear_loss, trying

CUDA = torch.device("cuda")


@pytest.fixture(autouse=True)
def as_if_there_were_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trying, "triton", object())


def fails() -> float:
    raise RuntimeError("no such\n instruction")


@pytest.mark.parametrize(
    ("error", "used", "said"),
    [(lambda: 1e-3, True, ""), (lambda: 0.5, False, "off by 5.0e-01"), (lambda: float("nan"), False, "off by nan"),
     (fails, False, "does not run: no such instruction")],
)  # fmt: skip
def test_only_what_runs_and_agrees_is_used(
    error: object, used: bool, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "anyformer"):
        assert trying.agrees(CUDA, "it", error, 1e-2) is used  # type: ignore[arg-type]
    assert said in caplog.text and bool(caplog.text) is not used


def test_a_cpu_is_never_tried() -> None:
    assert not trying.agrees(torch.device("cpu"), "it", fails, 1.0)


def test_every_kernel_of_training_goes_this_way(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (activation, adamw, linear_loss):
        monkeypatch.setattr(module, "compare", lambda *words, **named: 1.0)
    before = activation.reference.fused, linear_loss.reference.fused
    assert not activation.enable.__wrapped__(CUDA, "gelu", False)
    assert not adamw.enable.__wrapped__(CUDA) and not linear_loss.enable.__wrapped__(CUDA)
    assert (activation.reference.fused, linear_loss.reference.fused) == before

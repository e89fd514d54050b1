"""A processor that lists instructions it does not run is found out in another process, not in the user's."""

from __future__ import annotations

import signal
import subprocess

import pytest
import torch

from anyformer.errors import UserError
from anyformer.training.optim import Muon
from anyformer.training.settings import Training
from anyformer.training.setup import bf16_probe

CPU = torch.device("cpu")


def test_the_flag_is_read_from_the_processor_s_list(tmp_path):
    path = tmp_path / "cpuinfo"
    path.write_text("model name : x\nflags : avx2 amx_bf16 amx_tile\n")
    assert bf16_probe.has_amx(path)
    path.write_text("flags : avx2\n")
    assert not bf16_probe.has_amx(path)
    assert not bf16_probe.has_amx(tmp_path / "nowhere")


def test_fp32_with_adamw_needs_no_trial(monkeypatch):
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: pytest.fail("a process was started"))
    bf16_probe.check_bf16(Training(precision="fp32"), CPU)


def test_bf16_is_tried_for_real(monkeypatch):
    monkeypatch.setattr(bf16_probe, "has_amx", lambda: True)
    bf16_probe.check_bf16(Training(precision="bf16"), CPU)  # the tests' environment keeps to instructions that run


@pytest.mark.parametrize("training", [Training(precision="bf16"), Training(precision="fp32", optimizer=Muon())])
def test_a_process_that_dies_is_told_as_a_mistake_to_mend(monkeypatch, training):
    monkeypatch.setattr(bf16_probe, "has_amx", lambda: True)
    monkeypatch.setattr(bf16_probe, "TRY", f"import os; os.kill(os.getpid(), {int(signal.SIGILL)})")
    with pytest.raises(UserError, match="ONEDNN_MAX_CPU_ISA"):
        bf16_probe.check_bf16(training, CPU)

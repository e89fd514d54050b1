"""A run on a GPU that is killed and resumed ends in the bits of one that never was, where that is asked for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.training.tiny import CASES, differing, resume, write_data

pytestmark = [pytest.mark.device, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
# cuBLAS repeats its sums only with a fixed workspace, which must be asked for before the first product.
ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = os.environ | {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}


def run(words: list[str], where: Path, fault: str = "") -> int:
    words = ["cuda" if word == "cpu" else word for word in words]  # the same trainings, on the GPU
    done = subprocess.run([sys.executable, "-m", "anyformer.cli", *words], cwd=where, capture_output=True, text=True,
                          env=ENVIRONMENT | ({"ANYFORMER_FAULT": fault} if fault else {}))  # fmt: skip
    assert "Traceback" not in done.stderr and "No module" not in done.stderr, done.stderr
    return done.returncode


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("case", CASES)
def test_killed_and_resumed_ends_in_the_same_bits(case: str, precision: str, tmp_path: Path) -> None:
    write_data(tmp_path)
    settings = {"training__precision": precision, "training__deterministic": "true"}
    preset = ["--preset", "decoder-mini"] if case == "text" else []  # what a CPU takes: its heads fit the small width
    assert run(CASES[case].train("whole", **settings) + preset, tmp_path) == 0
    assert run(CASES[case].train("run", **settings) + preset, tmp_path, "kill@step:8") == -signal.SIGKILL
    assert run(resume("run"), tmp_path) == 0
    assert differing(tmp_path / "whole", tmp_path / "run") == []

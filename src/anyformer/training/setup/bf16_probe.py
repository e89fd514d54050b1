"""Check that bf16 works on this processor: some virtual machines list AMX and crash on using it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch

from anyformer.errors import UserError
from anyformer.training.optim import Muon
from anyformer.training.settings import Training

TRY = "import torch; x = torch.ones(128, 128, dtype=torch.bfloat16); (x @ x).sum().item()"


def check_bf16(training: Training, device: torch.device) -> None:
    """Reject bf16 on a processor where a bf16 matmul crashes; it is tried in a subprocess."""
    if device.type != "cpu" or not (training.precision == "bf16" or isinstance(training.optimizer, Muon)):
        return
    if not has_amx():
        return
    tried = subprocess.run([sys.executable, "-c", TRY], capture_output=True, check=False)
    if tried.returncode < 0:  # ended by a signal: illegal instruction
        what = "Muon works in bf16" if isinstance(training.optimizer, Muon) else "bf16 was asked for"
        raise UserError(
            f"{what}, and this processor crashes on it: it lists AMX instructions that it does not support",
            where="training", fix="set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 in the environment, or use AdamW in fp32",
        )  # fmt: skip


def has_amx(path: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the processor lists AMX."""
    try:
        return "amx_bf16" in path.read_text()
    except OSError:
        return False

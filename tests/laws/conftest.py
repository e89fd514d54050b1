"""The laws run tiny models: one thread each is fastest, and sums then come out the same on every machine."""

from __future__ import annotations

import os
from collections.abc import Iterator

# Virtual machines may report AMX and then not allow it: bf16 products die there of an illegal instruction.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import pytest
import torch


@pytest.fixture(scope="package", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)

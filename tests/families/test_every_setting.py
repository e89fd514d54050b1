"""Settings nobody listed are computed as transformers does, or refused; all of them: tests/attack/parity_sweep.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.attack import parity_sweep
from tests.attack.parity_sweep import EQUAL, REFUSED, SUBJECTS, compare, single

PARTIAL = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0, "original_max_position_embeddings": 8}
ROPED = ("llama", "mistral", "mixtral", "qwen2", "qwen3", "arcee")
FOUND: list[tuple[str, dict[str, Any], str]] = [
    *((name, {"rope_parameters": PARTIAL}, REFUSED) for name in ROPED),  # ignored there
    ("bloom", {"pretraining_tp": 2, "slow_but_exact": True}, REFUSED),  # biases are left out there
    ("bloom", {"pretraining_tp": 2}, EQUAL),
    ("bloom", {"slow_but_exact": True}, EQUAL),
    ("gpt_neox", {"num_attention_heads": 8}, REFUSED),  # a quarter of two channels: none turns
    ("gpt_neox", {"rope_parameters": YARN}, REFUSED),  # one channel of four, which a scaling cannot pair
    ("gpt_neox", {"rope_parameters": YARN | {"partial_rotary_factor": 0.5}}, EQUAL),
    ("gpt_neox", {"rope_parameters": PARTIAL}, EQUAL),
    ("llama", {"rope_parameters": YARN}, EQUAL),
]  # fmt: skip


@pytest.mark.parametrize(("name", "changes", "expected"), FOUND, ids=str)
def test_what_the_sweep_found_is_equal_or_refused(
    name: str, changes: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    assert compare(SUBJECTS[name], changes, tmp_path) == expected


@pytest.mark.parametrize("name", SUBJECTS)
def test_every_subject_of_the_sweep_is_equal_as_it_is(name: str, tmp_path: Path) -> None:
    assert compare(SUBJECTS[name], {}, tmp_path) == EQUAL
    assert sum(1 for _ in single([name])) > 20


def test_the_sweep_would_notice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = parity_sweep.ask_us

    def slightly_wrong(*given: Any) -> torch.Tensor:
        return right(*given) * 1.001

    monkeypatch.setattr(parity_sweep, "ask_us", slightly_wrong)
    assert compare(SUBJECTS["llama"], {}, tmp_path).startswith("off by")

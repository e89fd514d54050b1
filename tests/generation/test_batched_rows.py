"""`benchmarks/batched_rows.py` counts rows that differ from themselves alone, and strict mode leaves none."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import anyformer
from benchmarks import batched_rows
from benchmarks.batched_rows import compare

NEW = 12


@pytest.fixture(scope="module")
def model() -> Any:
    return anyformer.preset("gpt2-tiny").build(seed=0).to(torch.bfloat16).eval()


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(300, (2 + at,), generator=generator).tolist() for at in range(6)]


def test_strict_mode_leaves_no_row_that_differs_in_bf16(model: Any, prompts: list[list[int]]) -> None:
    found = compare(model, prompts, NEW, strict=True)
    assert found.rows == 6 and found.differing == 0 and found.tokens_alike == 1
    assert str(found) == "0 of 6 rows differ (0%); 100.0% of the tokens alike"


def test_control_rows_that_end_otherwise_in_company_are_counted(
    model: Any, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = batched_rows.continue_texts

    def disturbed(model: Any, prompts: list[list[int]], *args: Any, **options: Any) -> list[list[int]]:
        texts = plain(model, prompts, *args, **options)
        if len(prompts) > 1:  # in company the second row parts from itself after three tokens
            texts[1][3] += 1
        return texts

    monkeypatch.setattr(batched_rows, "continue_texts", disturbed)
    found = compare(model, prompts, NEW, strict=True)
    assert found.differing == 1 and found.tokens_alike == pytest.approx((5 * NEW + 3) / (6 * NEW))

"""Warnings of torch about itself on a GPU: everywhere else in the tests a warning is an error."""

from __future__ import annotations

from pathlib import Path

import pytest

IGNORED = (
    # The thread of the backward pass makes its CUDA context at its first product, and says so (torch 2.11).
    "ignore:Attempting to run cuBLAS, but there was no current CUDA context:UserWarning",
    # FlexAttention's own lowering still decorates with torch.jit (torch 2.11).
    "ignore:.torch[.]jit[.]script_method. is deprecated:DeprecationWarning",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            for rule in IGNORED:
                item.add_marker(pytest.mark.filterwarnings(rule))

"""Where real weights may lie; none of them is part of the repository."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
SHARED = REPOSITORY.parent / "shared" / "data" / "weights"  # small ones, beside the checkout where it has them
CACHE = REPOSITORY / ".cache" / "weights"  # larger ones, by `make weights`

if str(REPOSITORY) not in sys.path:
    sys.path.insert(0, str(REPOSITORY))  # recipes/ is no package of ours, but importable from the checkout


def there(folder: Path, how: str) -> Path:
    """The folder, or a test that says it was not there and how to get it."""
    if not folder.is_dir():
        pytest.skip(f"{folder.name} is not on this machine: {how}")
    return folder


def small(name: str) -> Path:
    return there(SHARED / name, "it lies beside the checkout where the data folder is shared")


def large(name: str) -> Path:
    return there(CACHE / name, "make weights")

"""What one file of tests/families/cases declares: the cases of a family, and what is compared on which of them."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import nn

from tests.families import cases as folder
from tests.families.parity import Case

Check = Callable[[Case, Path], object]


@dataclass(frozen=True)
class FamilyCases:
    """Logits are compared on every case, and every case is written and read back unless `round_trips` says which."""

    configs: Sequence[type]  # their configuration classes, every option of which must be read
    cases: Sequence[Case]
    round_trips: Sequence[Case] | None = None
    checks: Mapping[Check, Sequence[Case]] = field(default_factory=dict)  # everything else that is compared
    presets: Mapping[str, Callable[[], nn.Module]] = field(default_factory=dict)  # their network of the same size


def families() -> Iterator[tuple[str, FamilyCases]]:
    """Every family of tests/families/cases by the name of its file."""
    for found in pkgutil.iter_modules(folder.__path__):
        yield found.name, importlib.import_module(f"{folder.__name__}.{found.name}").FAMILY

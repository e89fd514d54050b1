"""Examples of parts by theme: each file may hold EXAMPLES, ALIKE, INPUTS and REASONS, and every law reads them all.

EXAMPLES: part -> {readable name: spec}. ALIKE: names whose neighbours stand for them in the grid of all pairs.
INPUTS: embedding -> function (embed, batch, length, seed, dtype) giving what a model is called with, as a tuple.
REASONS: pattern of a refusal's message -> function (parts of the cell) that shows it true.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any


def gathered(name: str) -> dict[Any, Any]:
    """One table of all files' tables called `name`; a set counts as a table of its members."""
    whole: dict[Any, Any] = {}
    for module in pkgutil.iter_modules(__path__):
        table = getattr(importlib.import_module(f"{__name__}.{module.name}"), name, {})
        whole |= table if isinstance(table, dict) else dict.fromkeys(table)
    return whole

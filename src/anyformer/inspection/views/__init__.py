"""The views of a capture: one module each, with a title, a reading hint, and answers to queries."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING

from anyformer.errors import UserError, did_you_mean
from anyformer.inspection.answer import Query

if TYPE_CHECKING:
    from anyformer.inspection.capture import Capture

NAMES = ("steps", "map", "heads", "cross", "trace", "lens", "image", "rollout", "filters", "positions", "table", "flow",
         "remove", "compare", "training")  # fmt: skip


def views() -> dict[str, ModuleType]:
    """Every view by name, in the order of the page."""
    return {name: import_module(f"{__name__}.{name}") for name in NAMES if find_spec(f"{__name__}.{name}")}


def view(name: str) -> ModuleType:
    """One view."""
    found = views()
    if name not in found:
        raise UserError(f"unknown view {name[:40]!r}", where="look", fix=did_you_mean(name[:40], found))
    return found[name]


def exported_queries(module: ModuleType, capture: Capture) -> Iterable[Query]:
    """The queries whose answers an exported page holds."""
    own = getattr(module, "exported", None)
    return [Query()] if own is None else own(capture)

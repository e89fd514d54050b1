"""Dependency tracking of answers: a query that records which of its parameters are read.

The page caches an answer for all queries that agree on these parameters: if a view does not read the selected cell,
moving the cell needs no request, and an exported page finds its answer for any cell.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from anyformer.errors import UserError
from anyformer.inspection.answer import SELECTION, Query, ViewAnswer
from anyformer.inspection.views import view

if TYPE_CHECKING:
    from anyformer.inspection.capture import Capture

EVERYTHING = "*"  # all options were read


class NotedOptions(Mapping[str, str]):
    """Options of a query that record the name of each lookup in `reads`."""

    def __init__(self, options: Mapping[str, str], reads: dict[str, None]) -> None:
        self.options, self.reads = options, reads

    def __getitem__(self, name: str) -> str:
        self.reads[name] = None
        return self.options[name]

    def __iter__(self) -> Iterator[str]:
        self.reads[EVERYTHING] = None
        return iter(self.options)

    def __len__(self) -> int:
        self.reads[EVERYTHING] = None
        return len(self.options)


class NotedQuery(Query):
    """A query that records the parameters read so far in `reads`."""

    def __init__(self, query: Query) -> None:
        reads: dict[str, None] = {}
        object.__setattr__(self, "_reads", reads)
        for name in SELECTION:
            object.__setattr__(self, name, getattr(query, name))
        object.__setattr__(self, "options", NotedOptions(query.options, reads))

    def __getattribute__(self, name: str) -> Any:
        if name in SELECTION:
            object.__getattribute__(self, "_reads")[name] = None
        return object.__getattribute__(self, name)

    @property
    def reads(self) -> tuple[str, ...]:
        return tuple(sorted(self.__dict__["_reads"]))


def answered(module: ModuleType, capture: Capture, query: Query) -> tuple[ViewAnswer, tuple[str, ...]]:
    """A view's answer, and the parameters that it read; `*` for all."""
    noted = NotedQuery(query)
    with torch.no_grad():  # a view that needs gradients enables them itself; threads start with them enabled
        answer: ViewAnswer = module.answer(capture, noted)
    return answer, noted.reads


def view_answer(capture: Capture, name: str, query: Query) -> tuple[ViewAnswer, tuple[str, ...]]:
    """The same for a view by its name; one that does not apply, and a cell that is not there, are rejected."""
    module = view(name)
    why = module.applies(capture)
    if why is not None:
        raise UserError(why, where=module.TITLE, fix="open another view")
    check_selection(capture, query)
    return answered(module, capture, query)


def check_selection(capture: Capture, query: Query) -> None:
    """Raise an error for a cell that does not exist, before any view uses it."""
    if not capture.sites:
        return
    site = capture.site(query.site)
    for name, value, count in (
        ("head", query.head, site.heads),
        ("query", query.query, len(capture.axes[site.queries])),
        ("key", query.key, len(capture.axes[site.keys])),
    ):
        if value >= count:
            raise UserError(f"{name} {value} is out of range", where=site.label, fix=f"use 0 to {count - 1}")

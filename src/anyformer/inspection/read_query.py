"""Which parameters an answer was made from: a query that notes what is read of it.

The page keeps an answer and gives it again for every question that agrees on those parameters: where a view does not
read the cell, moving the cell asks nothing of the server, and an exported page finds its answer whatever cell is meant.
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

EVERYTHING = "*"  # an option was looked for among all of them


class NotedOptions(Mapping[str, str]):
    """Options of a query; `reads` gets the name of each that is looked up."""

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
    """The same query; `reads` of it are the parameters asked for so far."""

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
    """A view's answer, and the parameters that it read; `*` where it read them all."""
    noted = NotedQuery(query)
    with torch.no_grad():  # a view that needs gradients turns them on itself; a thread begins with them on
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
    """Refuse a cell that is not there, before any view counts on it."""
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

"""Passes on the meta device without loading torch.compile."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import _compile
from torch._decomp import global_decomposition_table

CACHED = "__dynamo_disable"  # where torch caches the disabled version of a function


@contextmanager
def without_compiler() -> Iterator[None]:
    """Skip the import of torch._dynamo, which is not needed as nothing is compiled inside.

    Most meta kernels are Python functions wrapped in `torch._disable_dynamo`, whose first call imports torch._dynamo:
    most of the time of a first plan. Its result would be the function itself, so that is put into its cache meanwhile.
    """
    waiting = [] if "torch._dynamo" in sys.modules else [fn for fn in marked() if getattr(fn, CACHED, None) is None]
    for fn in waiting:
        setattr(fn, CACHED, fn)
    try:
        yield
    finally:
        for fn in waiting:
            delattr(fn, CACHED)


def marked() -> list[Callable[..., Any]]:
    """The functions of torch's decomposition table that are wrapped in `_disable_dynamo`, unwrapped."""
    asks = _compile._disable_dynamo(lambda: None).__code__
    found = {}
    for outer in (fn for table in global_decomposition_table.values() for fn in table.values()):
        while (inner := held_by(outer)) is not None:
            if outer.__code__ is asks:
                found[id(inner)] = inner
            outer = inner
    return list(found.values())


def held_by(wrapper: Any) -> Any:
    """The function inside a wrapper; torch's own wrappers all call it `fn`."""
    names = getattr(getattr(wrapper, "__code__", None), "co_freevars", ())
    return wrapper.__closure__[names.index("fn")].cell_contents if "fn" in names else None

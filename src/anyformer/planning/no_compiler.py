"""Runs on `meta` without loading torch's compiler."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import _compile
from torch._decomp import global_decomposition_table

CACHED = "__dynamo_disable"  # where torch keeps what the compiler made of a function that it must leave alone


@contextmanager
def without_compiler() -> Iterator[None]:
    """While nothing is compiled there is nothing to tell the compiler.

    The shapes of most operations on `meta` are computed in Python, by functions that ask the compiler to leave them
    alone. To ask, torch loads it: most of the time that the first plan takes. What it would answer is the function
    itself, so that stands there meanwhile.
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
    """Functions of torch that compute shapes and are not to be compiled: what stands inside of those that ask."""
    asks = _compile._disable_dynamo(lambda: None).__code__
    found = {}
    for outer in (fn for table in global_decomposition_table.values() for fn in table.values()):
        while (inner := held_by(outer)) is not None:
            if outer.__code__ is asks:
                found[id(inner)] = inner
            outer = inner
    return list(found.values())


def held_by(wrapper: Any) -> Any:
    """The function that a wrapper stands around; torch's own wrappers all call it `fn`."""
    names = getattr(getattr(wrapper, "__code__", None), "co_freevars", ())
    return wrapper.__closure__[names.index("fn")].cell_contents if "fn" in names else None

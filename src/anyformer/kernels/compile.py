"""`torch.compile`, loaded on first use, with a fallback to eager if compilation fails."""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from anyformer.kernels.compile_cache import redirect_default, use_private_cache

log = logging.getLogger("anyformer")

Function = Callable[..., Tensor]
SHAPES = 64  # recompilation limit per function


@cache
def load() -> Any:
    """Load torch.compile and return the config of Dynamo; takes a second or two the first time."""
    use_private_cache()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about torch's own internals
        redirect_default()
        importlib.import_module("torch._inductor.compile_fx")
    from torch._dynamo import config

    return config


def compile_function(
    function: Callable[..., Any],
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    options: dict[str, Any] | None = None,
) -> Callable[..., Any]:
    """`torch.compile` with the private compile cache; the only place in the package that calls it."""
    load()
    return torch.compile(function, fullgraph=fullgraph, dynamic=dynamic, options=options)


class Attempt:
    """A compiled function that falls back to `plain` for good, with one log line, once compilation has failed.

    `dynamic` compiles for varying sizes; otherwise each shape is compiled separately, except along axes marked as
    dynamic.
    """

    def __init__(self, function: Function, plain: Function, what: str, *, dynamic: bool | None = None) -> None:
        def code(*given: Any) -> Tensor:
            return function(*given)

        code.__code__ = code.__code__.replace()  # a copy: Dynamo counts recompilations per code object
        self.code: Function = compile_function(
            code, fullgraph=True, dynamic=dynamic, options={"realize_opcount_threshold": 0}
        )
        self.plain, self.what, self.lost = plain, what, False

    def __call__(self, *given: Any) -> Tensor:
        if not self.lost:
            try:
                with load().patch(recompile_limit=SHAPES, fail_on_recompile_limit_hit=True):
                    return self.code(*given)
            except Exception as error:  # a compiler may raise anything; eager is only slower
                self.lost = True
                why = " ".join(str(error).split())[:200] or type(error).__name__
                log.warning("%s not compiled: %s", self.what, why)
        return self.plain(*given)

"""Torch's compiler, loaded when it is first needed and done without where it fails."""

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
SHAPES = 64  # versions of one function at most


@cache
def load() -> Any:
    """The compiler's settings, once it is there: a second or two the first time."""
    use_private_cache()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about its own internals
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
    """As `torch.compile`, which nothing else calls: the compiled code is kept where only its owner can write."""
    load()
    return torch.compile(function, fullgraph=fullgraph, dynamic=dynamic, options=options)


class Attempt:
    """A function, compiled; or its plain form for good, with one line in the log, once compiling has failed.

    `dynamic` says that all sizes may differ from call to call; otherwise each shape is a version of its own, but for
    axes that were marked.
    """

    def __init__(self, function: Function, plain: Function, what: str, *, dynamic: bool | None = None) -> None:
        def code(*given: Any) -> Tensor:
            return function(*given)

        code.__code__ = code.__code__.replace()  # one of its own: versions are counted for each piece of source
        self.code: Function = compile_function(
            code, fullgraph=True, dynamic=dynamic, options={"realize_opcount_threshold": 0}
        )
        self.plain, self.what, self.lost = plain, what, False

    def __call__(self, *given: Any) -> Tensor:
        if not self.lost:
            try:
                with load().patch(recompile_limit=SHAPES, fail_on_recompile_limit_hit=True):
                    return self.code(*given)
            except Exception as error:  # whatever a compiler may raise: without it things are only slower
                self.lost = True
                why = " ".join(str(error).split())[:200] or type(error).__name__
                log.warning("%s not compiled: %s", self.what, why)
        return self.plain(*given)

"""A model drafted by its own weights in 8 bits: nothing to find or to train, and it is seldom wrong."""

from __future__ import annotations

import copy
from typing import Any
from weakref import WeakKeyDictionary

from anyformer.errors import UserError
from anyformer.generation.runners.compiled import Compiled, compiled
from anyformer.generation.runners.cpu_step import is_plain
from anyformer.kernels.quantise import is_rounded, quantise

Mark = list[tuple[int, int]]
KEPT: WeakKeyDictionary[Any, tuple[Mark, Any]] = WeakKeyDictionary()  # of each model its draft, and of which weights


def drafted_by_itself(model: Any) -> tuple[Any, Any]:
    """The model and its draft, both compiled where that is a matter of seconds or the model is compiled already.

    The draft is kept as long as the model and made anew when the weights have changed. It takes a quarter of the
    model's memory; all that is not rounded, such as norms, is the model's own.
    """
    inner = model.model if isinstance(model, Compiled) else model
    mark = [(weight.data_ptr(), weight._version) for weight in inner.parameters()]
    mark += [(buffer.data_ptr(), buffer._version) for buffer in inner.buffers()]
    known = KEPT.get(model)
    if known is None or known[0] != mark:
        if is_rounded(inner):
            raise UserError("the model is in 8 bits itself", where="draft", fix="leave draft out")
        shared = {id(one): one for one in (*inner.parameters(), *inner.buffers())}
        draft = quantise(copy.deepcopy(inner, shared))
        known = KEPT[model] = mark, compiled(draft) if isinstance(model, Compiled) or is_plain(draft) else draft
    return compiled(model) if isinstance(known[1], Compiled) else model, known[1]

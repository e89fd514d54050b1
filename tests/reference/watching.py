"""The largest tensor that any operation makes, forward and backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Largest(TorchDispatchMode):
    """`with Largest() as seen: ...`, then `seen.entries`; an expanded view counts as what it holds."""

    def __init__(self) -> None:
        super().__init__()
        self.entries = 0
        self.by = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                held = leaf.untyped_storage().nbytes() // leaf.element_size()
                if held > self.entries:
                    self.entries, self.by = held, str(func)
        return result


def largest(work: Any) -> int:
    """Entries of the largest tensor made by `work()`, which runs forward and backward."""
    torch.manual_seed(0)
    with Largest() as seen:
        work()
    return seen.entries

"""A site: one mixer of one layer as called in a pass. The page's `layer` menu is a list of sites."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from anyformer.core.attention_weights import Weighing
from anyformer.inspection.replay import ATTENDING, MixerCall
from anyformer.mixers.cross import CrossModule

SIDES = {"": "", "encoder": "Encoder ", "decoder": "Decoder ", "first": "First ", "second": "Second "}


@dataclass(frozen=True)
class Site:
    """A mixer call with a map, and the axes of its rows and columns."""

    index: int
    label: str
    stack: str
    layer: int  # number of the block in its stack, from 0; -1 outside of blocks
    kind: str  # self, cross or other (a mixer that is not attention)
    mixer: str  # the name of its spec: Attention, Hyena, ...
    path: str
    heads: int
    groups: int  # key/value heads
    causal: bool
    queries: str  # name of the axis of its rows
    keys: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def kind_of(call: MixerCall) -> str:
    module = call.module
    looks = isinstance(module, CrossModule) or (
        getattr(getattr(module, "spec", None), "looks_at_memory", False) and call.given[1].memory is not None
    )
    return "cross" if looks else "self" if isinstance(module, ATTENDING) else "other"


def label_of(call: MixerCall, kind: str, part: str) -> str:
    """The display name, with layers counted from 0, as in `look(layers=...)`."""
    side = SIDES.get(call.stack, f"{call.stack} ")
    if call.layer < 0:
        return call.path
    name = f"{side}layer {call.layer}"
    name = name[0].upper() + name[1:]
    return name + (" · cross" if kind == "cross" else f" · {part}" if part else "")


def head_counts(module: Any, weights: Tensor | None = None) -> tuple[int, int]:
    """Numbers of query heads and of key/value heads."""
    sizes = getattr(module, "sizes", None)
    if sizes is not None and not callable(sizes):
        return sizes.heads, sizes.groups
    heads = 1 if weights is None else weights.shape[1]
    return heads, heads


def is_weighing(module: Any) -> bool:
    return isinstance(module, Weighing)


def part_of(path: str) -> str:
    """The name of a mixer inside a mixer, such as the rows and columns of axial attention."""
    _, found, rest = path.rpartition(".mixer.")
    return rest.replace(".", " ") if found else ""

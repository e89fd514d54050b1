"""A public checkpoint format as data: config conversion both ways and a two-way name table. No network code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from anyformer.checkpoints.names import Row
from anyformer.families.config import FamilyConfig
from anyformer.slots import Network

# Kinds of head, the same for every family.
BARE, LM_HEAD, MASKED, CLASSIFY, TAG, SPAN, REPLACED = "bare", "lm", "masked", "classify", "tag", "span", "replaced"
PRETRAINING = "pretraining"  # masked LM and next-sentence prediction
ENCODER = "encoder"  # only the encoder of an encoder-decoder
BODY = "body"  # the bare model without its pooler, which files of other heads lack


@dataclass(frozen=True)
class Family:
    """One `model_type`.

    `heads` maps transformers' class names to our kinds of head. `settings(config, head)` gives the spec,
    `config(spec, head)` is its inverse, `table(spec, head)` the rows. Tensors of the bare model are under `prefix` in a
    model with a head (it may be missing in the file). `buffers` are regular expressions of tensors that are not
    weights;
    `tied(spec, head)` names tensors that repeat another one, as {copy: original} if the original is known. `spare` are
    regular expressions of weights that only other heads use: they may be in the file and are ignored (for all heads, or
    {head: expressions}). A `pooled` family has a pooler in its bare model; a file without it opens as the kind BODY.
    `static(spec, head, config)` computes tensors that the files have and our model computes: they are exported, and
    compared on import.
    """

    model_type: str
    heads: Mapping[str, str]
    settings: Callable[[FamilyConfig, str], Network]
    config: Callable[[Any, str], dict[str, Any]]
    table: Callable[[Any, str], tuple[Row, ...]]
    prefix: str = ""
    buffers: tuple[str, ...] = ()
    tied: Callable[[Any, str], tuple[str, ...] | Mapping[str, str]] = lambda spec, head: ()
    spare: tuple[str, ...] | Mapping[str, tuple[str, ...]] = ()
    pooled: bool = False
    static: Callable[[Any, str, Mapping[str, Any]], Mapping[str, Tensor]] = lambda spec, head, config: {}
    renamed: Mapping[str, str] | None = None  # older spellings of a tensor name's last word
    respelled: Callable[[str], str] = lambda name: name  # from alternative tensor names to the table's
    head_without_a_name: Callable[[Mapping[str, Any]], str] | None = None  # for a config without `architectures`
    modules: tuple[tuple[str, str], ...] = ()  # name parts that differ between files and transformers' code

    def module_name(self, name: str) -> str:
        """The module name in transformers' code of a name in the files; adapters use the former."""
        for piece, now in self.modules:
            name = name.replace(piece, now)
        return name

    def architecture(self, head: str) -> str:
        """transformers' class name for a kind of head."""
        return next(name for name, kind in self.heads.items() if kind == (BARE if head == BODY else head))

    @property
    def kinds(self) -> tuple[str, ...]:
        """Every kind of head."""
        return (*dict.fromkeys(self.heads.values()), *((BODY,) if self.pooled else ()))

"""What a public checkpoint format is, as data: settings both ways and a two-way table of names. No network code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from anyformer.checkpoints.names import Row
from anyformer.families.config import FamilyConfig
from anyformer.slots import Network

# Kinds of head, the same words for every family.
BARE, LM_HEAD, MASKED, CLASSIFY, TAG, SPAN, REPLACED = "bare", "lm", "masked", "classify", "tag", "span", "replaced"
PRETRAINING = "pretraining"  # words, and whether two texts belong together
ENCODER = "encoder"  # an encoder-decoder's first half alone
BODY = "body"  # the bare model without its pooler, which files of other heads leave out


@dataclass(frozen=True)
class Family:
    """One `model_type`.

    `heads` maps their class names to our kinds of head. `settings(config, head)` gives the spec, `config(spec, head)`
    is its reverse, `table(spec, head)` the rows. Tensors of the bare model lie under `prefix` in a model with a head
    (in the file it may be left out). `buffers` are regular expressions of tensors that are not weights;
    `tied(spec, head)` names tensors that repeat another one, as {copy: original} where the original is known. `spare`
    are regular expressions of weights that only other heads read: they may be in the file and are left there (for all
    heads, or {head: expressions}). A family that is `pooled` has a pooler in its bare model; a file without it is
    opened as the kind BODY. `static(spec, head, config)` computes tensors that their files hold and our model has no
    parameter for: written as they are, and compared with what is read.
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
    respelled: Callable[[str], str] = lambda name: name  # a whole name that has several spellings, as the table has it
    head_without_a_name: Callable[[Mapping[str, Any]], str] | None = None  # of a config without `architectures`
    modules: tuple[tuple[str, str], ...] = ()  # pieces of names in their files and in their code, where these differ

    def module_name(self, name: str) -> str:
        """A name of their files as their code has it, which adapters go by."""
        for piece, now in self.modules:
            name = name.replace(piece, now)
        return name

    def architecture(self, head: str) -> str:
        """Their class name for a kind of head."""
        return next(name for name, kind in self.heads.items() if kind == (BARE if head == BODY else head))

    @property
    def kinds(self) -> tuple[str, ...]:
        """Every kind of head, each once."""
        return (*dict.fromkeys(self.heads.values()), *((BODY,) if self.pooled else ()))

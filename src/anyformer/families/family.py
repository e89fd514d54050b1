"""What a public checkpoint format is, as data: settings both ways and a two-way table of names. No network code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from anyformer.checkpoints.names import Row
from anyformer.families.config import Config
from anyformer.slots import Network

# Kinds of head, the same words for every family.
BARE, LM_HEAD, MASKED, CLASSIFY, TAG, SPAN, REPLACED = "bare", "lm", "masked", "classify", "tag", "span", "replaced"


@dataclass(frozen=True)
class Family:
    """One `model_type`.

    `heads` maps their class names to our kinds of head. `settings(config, head)` gives the spec, `config(spec, head)` is
    its reverse, `table(spec, head)` the rows. Tensors of the bare model lie under `prefix` in a model with a head (in the
    file it may be left out). `buffers` are regular expressions of tensors that are no weights; `tied(spec, head)` names
    tensors that repeat another one.
    """

    model_type: str
    heads: Mapping[str, str]
    settings: Callable[[Config, str], Network]
    config: Callable[[Any, str], dict[str, Any]]
    table: Callable[[Any, str], tuple[Row, ...]]
    prefix: str = ""
    buffers: tuple[str, ...] = ()
    tied: Callable[[Any, str], tuple[str, ...]] = lambda spec, head: ()
    renamed: Mapping[str, str] | None = None  # older spellings of a tensor name's last word

    def architecture(self, head: str) -> str:
        """Their class name for a kind of head."""
        return next(name for name, kind in self.heads.items() if kind == head)

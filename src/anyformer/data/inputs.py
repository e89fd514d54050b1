"""The columns to learn from: those that help or were asked for; what is left out has a reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from anyformer.data.columns.base import Column
from anyformer.data.columns.kinds import kind_named
from anyformer.data.columns.look import Facts
from anyformer.data.frame import Frame
from anyformer.data.settings import Data
from anyformer.errors import UserError


@dataclass(frozen=True)
class Input:
    """One column to learn from."""

    name: str
    kind: str  # the name of a kind of column
    facts: Facts

    @property
    def column(self) -> type[Column]:
        """The kind itself."""
        return kind_named(self.kind)


def name_of(frame: Frame) -> str:
    """The file a frame came from, for messages."""
    return frame.sources[0].name if frame.sources else "data"


def inputs_of(
    frame: Frame, facts: Mapping[str, Facts], settings: Data, target: tuple[str, ...]
) -> tuple[list[Input], list[tuple[str, str]]]:
    """The columns to learn from, and those left out with the reason."""
    split, asked = settings.split, settings.kinds()
    rest: list[Input] = []
    dropped: list[tuple[str, str]] = []
    for name in frame.names:
        if name in target:
            continue
        if settings.inputs is not None:
            if name in settings.inputs:
                rest.append(Input(name, facts[name].readable, facts[name]))
            else:
                dropped.append((name, "not among the inputs asked for"))
        elif name == split.column:
            dropped.append((name, "says the split"))
        elif name == split.group and name not in asked:
            dropped.append((name, "says the group"))
        elif asked.get(name) == "skip":
            dropped.append((name, "left out as asked"))
        elif facts[name].dropped and name not in asked:
            dropped.append((name, str(facts[name].dropped)))
        else:
            rest.append(Input(name, facts[name].kind, facts[name]))
    both = [name for name in settings.inputs or () if name in target]
    if both:
        raise UserError(f"{both[0]!r} is input and target at once", where="--inputs", fix="take it out of one")
    return rest, dropped

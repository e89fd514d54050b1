"""What a proof found: figures, each beside the bar it must reach."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """One row of the record."""

    proof: str
    figure: str
    bar: str
    value: float
    ok: bool

    def __str__(self) -> str:
        return f"{'ok ' if self.ok else 'NO '} {self.proof:<12} {self.figure:<58} {self.value:>12.5g}   bar {self.bar}"


class Figures(list[Figure]):
    """Collects them under the name of a proof."""

    def __init__(self, proof: str) -> None:
        super().__init__()
        self.proof = proof

    def at_most(self, figure: str, value: float, bar: float) -> None:
        self.append(Figure(self.proof, figure, f"<= {bar:g}", value, value <= bar))

    def at_least(self, figure: str, value: float, bar: float) -> None:
        self.append(Figure(self.proof, figure, f">= {bar:g}", value, value >= bar))

    def equal(self, figure: str, value: float, bar: float) -> None:
        self.append(Figure(self.proof, figure, f"= {bar:g}", value, value == bar))

    def note(self, figure: str, value: float) -> None:
        """A number without a bar, kept to judge the others by."""
        self.append(Figure(self.proof, figure, "", value, True))

    def check(self) -> None:
        """For a test: all of them, or what was missed."""
        text = "\n".join(map(str, self))
        print(text)
        assert self and all(figure.ok for figure in self), f"\n{text}"


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that this share of them does not exceed; nan of none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan


def slope(values: Sequence[float], seconds: Sequence[float]) -> float:
    """Change a second, by least squares."""
    middle, mean = sum(seconds) / len(seconds), sum(values) / len(values)
    spread = sum((at - middle) ** 2 for at in seconds)
    return sum((at - middle) * (value - mean) for at, value in zip(seconds, values, strict=True)) / spread

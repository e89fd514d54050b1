"""What a claim is: who said it, what is measured, and how the measurement is judged.

A claim is cut into cases, one measurement each (a seed, a depth, a length). The runner keeps the result of every case
as it comes, so a run that was stopped goes on where it was, and `judge` sees all of them at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from statistics import mean
from typing import Any

Case = Mapping[str, Any]  # what one measurement is about, as JSON: {"seed": 0, "place": "pre"}
Result = Mapping[str, Any]  # what it gave, as JSON


class Verdict(Enum):
    """What a measurement says of a claim."""

    HOLDS = "holds"
    IN_PART = "holds in part"
    NOT_HERE = "not at this scale"


@dataclass(frozen=True)
class Plot:
    """Lines over one axis. `lines` maps a name to its points; an axis may be logarithmic.

    `apart` draws the points alone, where nothing lies between two of them.
    """

    title: str
    across: str
    up: str
    lines: Mapping[str, Sequence[tuple[float, float]]]
    log_across: bool = False
    log_up: bool = False
    apart: bool = False


@dataclass(frozen=True)
class ResultTable:
    """Rows of cells under a heading each; every cell is already written out."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Finding:
    """What came out: one line measured, the verdict, the reason for it, and what to show."""

    measured: str
    verdict: Verdict
    reason: str
    table: ResultTable
    plots: Sequence[Plot] = ()


@dataclass(frozen=True)
class Measurements:
    """The results of all cases, by what they were about."""

    entries: Sequence[tuple[Case, Result]] = field(default_factory=list)

    def where(self, **wanted: Any) -> Measurements:
        """Those whose case has these values.

        >>> Measurements([({"seed": 0}, {"loss": 1.0}), ({"seed": 1}, {"loss": 3.0})]).where(seed=1).values("loss")
        [3.0]
        """
        return Measurements([e for e in self.entries if all(e[0].get(key) == value for key, value in wanted.items())])

    def values(self, name: str) -> list[Any]:
        """One figure of every result, in the order of the cases."""
        return [result[name] for _, result in self.entries]

    def mean(self, name: str) -> float:
        """The mean of one figure."""
        return mean(self.values(name))

    def spread(self, name: str, form: str = ".3g") -> str:
        """The mean of one figure with its lowest and highest.

        >>> Measurements([({}, {"loss": 1.0}), ({}, {"loss": 3.0})]).spread("loss")
        '2 (1 to 3)'
        """
        return spread(self.values(name), form)


def spread(values: Sequence[float], form: str = ".3g") -> str:
    """The mean with the lowest and the highest; a single value alone."""
    if len(values) == 1:
        return format(values[0], form)
    return f"{mean(values):{form}} ({min(values):{form}} to {max(values):{form}})"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One claim of the lectures.

    `cases(full)` lists the measurements of the small or of the full form, `measure(case)` makes one of them, and
    `judge(measurements)` says what they mean. Each must be a pure function of what it is given, up to the clock.
    """

    name: str
    claim: str
    lecture: str
    source: str
    quoted: str
    method: str
    cost: str
    cases: Callable[[bool], Sequence[Case]]
    measure: Callable[[Case], Result]
    judge: Callable[[Measurements], Finding]
    measures_time: Callable[[Case], bool] = lambda case: False  # such a case is measured while nothing else runs

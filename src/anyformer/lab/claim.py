"""A claim: its source, its measurement, and the verdict on it.

A claim is split into cases, one measurement each (a seed, a depth, a length). The runner stores the result of every
case at once, so that a stopped run can resume, and `judge` gets all of them together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from statistics import mean
from typing import Any

Case = Mapping[str, Any]  # the parameters of one measurement, as JSON: {"seed": 0, "place": "pre"}
Result = Mapping[str, Any]  # its result, as JSON


class Verdict(Enum):
    """The verdict of the measurements on a claim."""

    HOLDS = "holds"
    IN_PART = "holds in part"
    NOT_HERE = "not at this scale"


@dataclass(frozen=True)
class Plot:
    """A line plot. `lines` maps a name to its points; an axis may be logarithmic.

    `apart` draws points without lines, for discrete values.
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
    """A table of formatted cells, with a heading for each column."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Finding:
    """The outcome: a one-line measurement, the verdict and its reason, and table and plots."""

    measured: str
    verdict: Verdict
    reason: str
    table: ResultTable
    plots: Sequence[Plot] = ()


@dataclass(frozen=True)
class Measurements:
    """The results of all cases, with their parameters."""

    entries: Sequence[tuple[Case, Result]] = field(default_factory=list)

    def where(self, **wanted: Any) -> Measurements:
        """The results whose case has these parameter values.

        >>> Measurements([({"seed": 0}, {"loss": 1.0}), ({"seed": 1}, {"loss": 3.0})]).where(seed=1).values("loss")
        [3.0]
        """
        return Measurements([e for e in self.entries if all(e[0].get(key) == value for key, value in wanted.items())])

    def values(self, name: str) -> list[Any]:
        """One value of every result, in the order of the cases."""
        return [result[name] for _, result in self.entries]

    def mean(self, name: str) -> float:
        """The mean of one value over the results."""
        return mean(self.values(name))

    def spread(self, name: str, form: str = ".3g") -> str:
        """The mean of one value with its minimum and maximum, as text.

        >>> Measurements([({}, {"loss": 1.0}), ({}, {"loss": 3.0})]).spread("loss")
        '2 (1 to 3)'
        """
        return spread(self.values(name), form)


def spread(values: Sequence[float], form: str = ".3g") -> str:
    """The mean with minimum and maximum, as text; just the value if there is only one."""
    if len(values) == 1:
        return format(values[0], form)
    return f"{mean(values):{form}} ({min(values):{form}} to {max(values):{form}})"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One claim of the lectures.

    `cases(full)` lists the cases of the small or the full form, `measure(case)` measures one of them, and
    `judge(measurements)` gives the finding. Each must be a pure function of its arguments, except for timings.
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
    measures_time: Callable[[Case], bool] = lambda case: False  # such a case is measured alone, not in parallel

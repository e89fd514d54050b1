"""Shared code of claims about errors in the slides: each erratum with the slide's form and the correct one.

A claim measures the error of every form. The slide's forms must be clearly wrong, the correct ones right: a claim
about an error has to show that it is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from anyformer.lab.claim import Finding, Measurements, Plot, ResultTable, Verdict

CLEAR, EXACT = 1e-2, 1e-10
ROUNDING, NOTHING = 1e-12, 1e-17  # tolerance for rounding; where an error of 0 is drawn on a logarithmic axis
STATED = "stated, not measured"


@dataclass(frozen=True)
class Erratum:
    """`wrong` and `good` name the results of the two forms; a wrong citation has none and is only stated.

    Every result is a relative error. `clear` is the least error of the slide's form, and `within` the largest of the
    correct form.
    """

    number: int
    slide: str
    right: str
    wrong: tuple[str, ...] = ()
    good: tuple[str, ...] = ()
    clear: float = CLEAR
    within: float = EXACT

    def shows(self, found: Measurements) -> bool:
        """Whether the slide's form is wrong in every seed, by each of its values."""
        return all(value >= self.clear for name in self.wrong for value in found.values(name))

    def stands(self, found: Measurements) -> bool:
        """Whether the correct form is right in every seed, by each of its values."""
        return all(value <= self.within for name in self.good for value in found.values(name))

    def row(self, found: Measurements) -> tuple[str, ...]:
        if not self.wrong:
            return (str(self.number), self.slide, STATED, self.right, STATED)
        least, most = self.least(found), self.most(found)
        return (str(self.number), self.slide, f"{least:.2g}", self.right, f"{most:.2g}" if most else "0")

    def least(self, found: Measurements) -> float:
        """The smallest error of the slide's form over seeds and values."""
        return min(min(found.values(name)) for name in self.wrong)

    def most(self, found: Measurements) -> float:
        """The largest error of the correct form over seeds and values."""
        return max(max(found.values(name)) for name in self.good)


def judge_errata(errata: Sequence[Erratum], found: Measurements) -> Finding:
    """Holds if every correct form is right and every slide's form is clearly wrong."""
    measured = [erratum for erratum in errata if erratum.wrong]
    shown = [erratum for erratum in measured if erratum.shows(found)]
    broken = [erratum.number for erratum in measured if not erratum.stands(found)]
    unseen = [erratum.number for erratum in measured if erratum not in shown]
    if broken or not shown:
        verdict = Verdict.NOT_HERE
    else:
        verdict = Verdict.IN_PART if unseen else Verdict.HOLDS
    bounds = (
        min(one.least(found) / one.clear for one in measured),
        max(one.most(found) / one.within for one in measured),
    )
    reason = (
        f"the slides' forms are off by {bounds[0]:.3g} times their bounds or more, the right ones by {bounds[1]:.2g} "
    )
    reason += "of theirs at most"
    if broken:
        reason += f"; the right form is off in {numbers(broken)}"
    if unseen:
        reason += f"; the slide's form is not clearly off in {numbers(unseen)}"
    stated = [erratum.number for erratum in errata if not erratum.wrong]
    if stated:
        reason += f"; {numbers(stated)} is a citation and is stated, not measured"
    return Finding(
        measured=in_words(measured, found, len(shown), len(measured) - len(broken)),
        verdict=verdict,
        reason=reason,
        table=ResultTable(
            ("erratum", "the slide's form", "at least off by", "the right form", "at most off by"),
            [one.row(found) for one in errata],
        ),
        plots=[errata_plot(measured, found)],
    )


def in_words(errata: Sequence[Erratum], found: Measurements, wrong: int, right: int) -> str:
    """How many forms are wrong and right, and by how much, in words; the table has each value."""
    least, most = min(one.least(found) for one in errata), max(one.most(found) for one in errata)
    exact = "up to rounding" if most <= ROUNDING else f"to {most:.1%}" if most >= 1e-3 else f"to {most:.0e}"
    return (f"{wrong} of {len(errata)} forms on the slides are wrong, by {least:.0%} or more; {right} of {len(errata)} "
            f"corrected ones are right {exact}")  # fmt: skip


def errata_plot(errata: Sequence[Erratum], found: Measurements) -> Plot:
    """The errors of both forms of each erratum."""
    ordered = sorted(errata, key=lambda one: one.number)
    lines = {
        "on the slide": [(one.number, max(one.least(found), NOTHING)) for one in ordered],
        "corrected": [(one.number, max(one.most(found), NOTHING)) for one in ordered],
    }
    up = f"off by, relative; 0 stands at {NOTHING:.0e}"
    return Plot("How far each form is from the truth", "erratum", up, lines, log_up=True, apart=True)


def numbers(found: Sequence[int]) -> str:
    return ("erratum " if len(found) == 1 else "errata ") + ", ".join(map(str, found))

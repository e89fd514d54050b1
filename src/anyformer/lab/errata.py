"""What claims about the slides' slips share: each erratum with the slide's form and the right one, side by side.

A claim measures by how much every form misses what is true. The slide's forms must miss it clearly, the right ones must
meet it: a claim that shows an error has to show that it is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from anyformer.lab.claim import Finding, Measurements, Plot, ResultTable, Verdict

CLEAR, EXACT = 1e-2, 1e-10
ROUNDING, NOTHING = 1e-12, 1e-17  # below which a distance is rounding; where one of 0 stands on a logarithmic axis
STATED = "stated, not measured"


@dataclass(frozen=True)
class Erratum:
    """`wrong` and `good` name the figures of the two forms; a slip of a citation has none and is only stated.

    Every figure is a distance from the truth, relative to it. `clear` is what the slide's form must miss it by, and
    `within` what the right form may.
    """

    number: int
    slide: str
    right: str
    wrong: tuple[str, ...] = ()
    good: tuple[str, ...] = ()
    clear: float = CLEAR
    within: float = EXACT

    def shows(self, found: Measurements) -> bool:
        """Whether the slide's form misses the truth in every seed, by each of its figures."""
        return all(value >= self.clear for name in self.wrong for value in found.values(name))

    def stands(self, found: Measurements) -> bool:
        """Whether the right form meets the truth in every seed, by each of its figures."""
        return all(value <= self.within for name in self.good for value in found.values(name))

    def row(self, found: Measurements) -> tuple[str, ...]:
        if not self.wrong:
            return (str(self.number), self.slide, STATED, self.right, STATED)
        least, most = self.least(found), self.most(found)
        return (str(self.number), self.slide, f"{least:.2g}", self.right, f"{most:.2g}" if most else "0")

    def least(self, found: Measurements) -> float:
        """What the slide's form misses the truth by in the seed and figure where that is least."""
        return min(min(found.values(name)) for name in self.wrong)

    def most(self, found: Measurements) -> float:
        """What the right form misses it by in the seed and figure where that is most."""
        return max(max(found.values(name)) for name in self.good)


def judge_errata(errata: Sequence[Erratum], found: Measurements) -> Finding:
    """Holds where every right form meets the truth and every slide's form clearly does not."""
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
    """How many forms are wrong and right, and by how much: each one's figure is in the table."""
    least, most = min(one.least(found) for one in errata), max(one.most(found) for one in errata)
    exact = "up to rounding" if most <= ROUNDING else f"to {most:.1%}" if most >= 1e-3 else f"to {most:.0e}"
    return (f"{wrong} of {len(errata)} forms on the slides are wrong, by {least:.0%} or more; {right} of {len(errata)} "
            f"corrected ones are right {exact}")  # fmt: skip


def errata_plot(errata: Sequence[Erratum], found: Measurements) -> Plot:
    """Both forms of each erratum beside each other."""
    ordered = sorted(errata, key=lambda one: one.number)
    lines = {
        "on the slide": [(one.number, max(one.least(found), NOTHING)) for one in ordered],
        "corrected": [(one.number, max(one.most(found), NOTHING)) for one in ordered],
    }
    up = f"off by, relative; 0 stands at {NOTHING:.0e}"
    return Plot("How far each form is from the truth", "erratum", up, lines, log_up=True, apart=True)


def numbers(found: Sequence[int]) -> str:
    return ("erratum " if len(found) == 1 else "errata ") + ", ".join(map(str, found))

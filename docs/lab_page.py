"""Writes docs/lab.md, its pictures and the verdicts on the lecture pages from kept figures: python -m docs.lab_page

    anyformer lab run --all --out benchmarks/results/lab       # measures what is not there yet
    python -m docs.lab_page

Nothing is measured here: results of a claim whose code has changed since do not count, and the page says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from anyformer.lab.catalogue import all_claims
from anyformer.lab.claim import Verdict
from anyformer.lab.plot import draw
from anyformer.lab.runner import ClaimRun, finished_runs

HERE = Path(__file__).parent
KEPT = HERE.parent / "benchmarks" / "results" / "lab"
PAGE, IMAGES, LECTURES = HERE / "lab.md", HERE / "images" / "lab", HERE / "lectures"
MARK = re.compile(r"<!-- verdict: ([\w-]+) -->.*?<!-- /verdict -->", re.DOTALL)
TOP = """# The lectures, re-run

Every claim of the lectures that can be measured is a file in [lab/claims/](../src/anyformer/lab/claims): what is
claimed and by whom, the published figure, how it is measured here, and the bounds by which it is judged. Each can fail.

```
anyformer lab list                        # claim, lecture, quoted figure, cost
anyformer lab run softmax-scale           # measure one, judge it and draw it; results are kept in runs/lab
anyformer lab run --all                   # all of them; what was measured before is not measured again
anyformer lab run norm-placement --full   # more seeds and sizes, on a GPU where there is one
anyformer lab report                      # one self-contained page of all that was run
```

| verdict | what it means |
|---|---|
| holds | every bound of the claim is met |
| holds in part | some of its bounds are met; the reason says which |
| not at this scale | the measurement here does not show it: networks of this size, trained this long |

The figures below are of the small form, of three minutes at most on two cores: networks of some ten thousand to a
million parameters. They were measured on a CPU with torch {torch}. A claim that needs a large model can fail here and
be true there; one that holds here holds for models anybody can train. In parentheses: the lowest and highest of
the seeds. The verdict of the full form is given where that was run too. *Took* are the seconds of one core that all
measurements of the small form took. What a paper or a slide says, what came out here and why the verdict is what it is
stands under each claim's own heading, to which its line below leads.
"""


def render(
    runs: list[ClaimRun], missing: list[str], fuller: Mapping[str, ClaimRun]
) -> tuple[str, dict[str, str]]:  # fmt: skip
    """The page, and its pictures by their names; `fuller` are the runs of the full form that are kept."""
    counts = {verdict: sum(run.finding.verdict is verdict for run in runs) for verdict in Verdict}
    versions = " and ".join(sorted({run.torch for run in runs})) or "?"
    parts = [TOP.format(torch=versions), "## All claims", ""]
    parts += [
        f"Of {len(runs)} claims, by verdict: "
        + ", ".join(f"{verdict.value}: {count}" for verdict, count in counts.items())
        + "."
    ]
    if missing:
        parts += ["", f"Not measured since their code changed: {', '.join(missing)}."]
    parts += ["", "| claim | lecture | verdict | full form | took |", f"|{5 * '---|'}"]
    parts += [
        f"| [{cell(run.claim.claim)}](#{run.claim.name}) | {linked(run.claim.lecture)} | {run.finding.verdict.value} | "
        f"{fuller[run.claim.name].finding.verdict.value if run.claim.name in fuller else ''} | {took(run)} |"
        for run in runs
    ]
    drawn: dict[str, str] = {}
    for run in runs:
        names = [f"{run.claim.name}-{number}.svg" for number in range(1, len(run.finding.plots) + 1)]
        drawn |= {name: draw(plot) + "\n" for name, plot in zip(names, run.finding.plots, strict=True)}
        parts += ["", *section(run, names, fuller.get(run.claim.name))]
    return "\n".join(parts) + "\n", drawn


def linked(lectures: str) -> str:
    """Lectures by their numbers, each a link to its page.

    >>> linked("L0, L2")
    '[0](lectures/0-transformers.md), [2](lectures/2-from-recurrence.md)'
    """
    pages = {f"L{page.name[0]}": page.name for page in LECTURES.glob("[0-9]-*.md")}
    return ", ".join(f"[{name[1:]}](lectures/{pages[name]})" for name in lectures.split(", "))


def took(run: ClaimRun) -> str:
    """Seconds of one core, in two digits."""
    return f"{float(f'{run.seconds:.2g}'):g} s"


def section(run: ClaimRun, pictures: list[str], fuller: ClaimRun | None) -> list[str]:
    """One claim: who said what, what came out, its pictures and its figures."""
    claim, finding = run.claim, run.finding
    module = claim.measure.__module__.rpartition(".")[2]
    facts = {
        "claim": claim.claim, "lecture": f"{claim.lecture}; {claim.source}", "quoted": claim.quoted,
        "method": claim.method, "measured": finding.measured, "verdict": f"**{finding.verdict.value}**",
        "because": finding.reason, "took": f"{took(run)} of one core, {len(run.measurements.entries)} measurements",
    }  # fmt: skip
    if fuller is not None:
        facts["full form"] = f"**{fuller.finding.verdict.value}**, {fuller.finding.measured} ({took(fuller)})"
    heads, rows = finding.table.heads, finding.table.rows
    return [
        f"## {claim.name}", "", "| | |", "|---|---|", *(f"| {name} | {cell(value)} |" for name, value in facts.items()),
        f"| code | [{module}.py](../src/anyformer/lab/claims/{module}.py) |", "",
        *(line for name in pictures for line in (f"![{claim.name}](images/lab/{name})", "")),
        f"| {' | '.join(map(cell, heads))} |", f"|{'---|' * len(heads)}",
        *(f"| {' | '.join(map(cell, row))} |" for row in rows),
    ]  # fmt: skip


def cell(text: str) -> str:
    """Text that stays in its cell.

    >>> cell("|x| < 1")
    '\\\\|x\\\\| < 1'
    """
    return text.replace("|", "\\|").replace("\n", " ")


def with_verdicts(page: str, runs: Mapping[str, ClaimRun]) -> str:
    """A lecture page with a sentence and the first picture between the marks of each claim."""

    def sentence(found: re.Match[str]) -> str:
        name = found[1]
        if name not in runs:
            said = f"*Not measured since its code changed: `anyformer lab run {name}`.*"
        else:
            finding = runs[name].finding
            said = (
                f"> **Measured: {finding.verdict.value}.** {finding.measured}. [How, and the figures](../lab.md#{name})"
                f"\n\n![{name}: {finding.plots[0].title}](../images/lab/{name}-1.svg)"
            )
        return f"<!-- verdict: {name} -->\n{said}\n<!-- /verdict -->"

    return MARK.sub(sentence, page)


def kept_runs() -> tuple[list[ClaimRun], list[str]]:
    """The claims whose measurements are kept, judged by today's code, and those that have none."""
    return finished_runs(all_claims().values(), KEPT, full=False, any_torch=True)


def fuller_runs() -> dict[str, ClaimRun]:
    """Those whose full form is kept too."""
    runs, _ = finished_runs(all_claims().values(), KEPT, full=True, any_torch=True)
    return {run.claim.name: run for run in runs}


def main() -> None:
    runs, missing = kept_runs()
    page, drawn = render(runs, missing, fuller_runs())
    PAGE.write_text(page, encoding="utf-8")
    IMAGES.mkdir(parents=True, exist_ok=True)
    for old in set(IMAGES.glob("*.svg")) - {IMAGES / name for name in drawn}:
        old.unlink()
    for name, picture in drawn.items():
        (IMAGES / name).write_text(picture, encoding="utf-8")
    by_name = {run.claim.name: run for run in runs}
    for path in sorted(LECTURES.glob("*.md")):
        path.write_text(with_verdicts(path.read_text(encoding="utf-8"), by_name), encoding="utf-8")
    print(f"{len(runs)} claims on {PAGE.name}, {len(missing)} not measured: {' '.join(missing)}")


if __name__ == "__main__":
    main()

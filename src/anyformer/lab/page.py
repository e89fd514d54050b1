"""The report: one self-contained page with every claim that was run, in the style of the training report."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from anyformer.evaluation.page import document, pairs, picture, section, table
from anyformer.lab.claim import Verdict
from anyformer.lab.plot import draw
from anyformer.lab.runner import ClaimRun


def report_page(runs: Sequence[ClaimRun], missing: Sequence[str] = ()) -> str:
    """The HTML report; `missing` are the claims that have not been run."""
    counts = {verdict: sum(run.finding.verdict is verdict for run in runs) for verdict in Verdict}
    summary = ", ".join(f"{verdict.value}: {count}" for verdict, count in counts.items() if count) or "none was run"
    head = f"<h1>The lectures, re-run</h1><p>{len(runs)} claims; {escape(summary)}.</p>"
    if missing:
        head += f"<p>Not run yet: {escape(', '.join(missing))}.</p>"
    rows = [
        [escape(cell) for cell in (run.claim.name, run.claim.quoted, run.finding.measured, run.finding.verdict.value)]
        for run in runs
    ]
    body = section("overview", "Overview", table(("claim", "quoted", "measured", "verdict"), rows))
    body += "".join(section(run.claim.name, escape(run.claim.claim), claim_body(run)) for run in runs)
    links = [("overview", "Overview"), *((run.claim.name, run.claim.name) for run in runs)]
    return document("The lectures, re-run", head, links, body, "Made by <code>anyformer lab report</code>.")


def claim_body(run: ClaimRun) -> str:
    """The section of one claim: its source, the measurement, plots and table."""
    claim, finding = run.claim, run.finding
    facts = {"lecture": claim.lecture, "source": claim.source, "method": claim.method, "quoted": claim.quoted,
             "measured": finding.measured, "verdict": finding.verdict.value, "because": finding.reason,
             "form": "full" if run.full else "small",
             "took": f"{run.seconds:.0f} s in all cases, torch {run.torch}"}  # fmt: skip
    drawn = "".join(picture(draw(plot), escape(plot.title)) for plot in finding.plots)
    shown = finding.table
    listed = table([escape(head) for head in shown.heads], [[escape(cell) for cell in row] for row in shown.rows])
    return pairs(facts) + drawn + listed

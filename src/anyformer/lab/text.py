"""Findings as plain text for the terminal."""

from __future__ import annotations

from collections.abc import Iterable

from anyformer.lab.claim import Claim, ResultTable
from anyformer.lab.runner import ClaimRun


def table_text(table: ResultTable) -> str:
    """A table with aligned columns.

    >>> print(table_text(ResultTable(("head", "loss"), (("1", "2.5"), ("16", "2.25")))))
    head  loss
    1     2.5
    16    2.25
    """
    widths = [max(map(len, column)) for column in zip(table.heads, *table.rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in (table.heads, *table.rows)
    ]
    return "\n".join(line.rstrip() for line in lines)


def list_text(claims: Iterable[Claim]) -> str:
    """A table of claims: name, lecture, cost, claim and quoted figure."""
    rows = [(claim.name, claim.lecture, claim.cost, claim.claim, claim.quoted) for claim in claims]
    return table_text(ResultTable(("NAME", "LECTURE", "COST", "CLAIM", "QUOTED"), rows))


def finding_text(run: ClaimRun) -> str:
    """The claim, the measurement, and the verdict."""
    claim, finding = run.claim, run.finding
    facts = {"claim": f"{claim.claim} ({claim.lecture})", "source": claim.source, "method": claim.method,
             "quoted": claim.quoted, "measured": finding.measured, "verdict": finding.verdict.value,
             "because": finding.reason, "took": f"{run.seconds:.0f} s in all cases"}  # fmt: skip
    return "\n".join([*(f"{name:<10}{value}" for name, value in facts.items()), "", table_text(finding.table)])

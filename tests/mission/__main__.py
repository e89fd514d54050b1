"""`python -m tests.mission`: every promise with what shows it and what is missing; 1 where a reference is broken."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from anyformer.lab.catalogue import all_claims
from tests.mission.references import broken_references, unknown_marks
from tests.mission.table import KINDS, MissionRow, read_rows

NAMES = {"R": "rows", "W": "worked examples", "E": "errata"}


def main(words: Sequence[str] | None = None) -> int:
    asked = parse(words)
    rows = read_rows()
    broken = broken_references(rows, all_claims()) + unknown_marks()
    chosen = [row for row in rows if is_chosen(row, asked)]
    print(markdown(chosen) if asked.markdown else "\n".join(map(text, chosen)), end="\n" if chosen else "")
    print("\n".join(summary(rows)), file=sys.stderr if asked.markdown else sys.stdout)
    print("".join(f"{line}\n" for line in broken), end="", file=sys.stderr)
    return 1 if broken else 0


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mission", description=__doc__)
    parser.add_argument("names", nargs="*", help="rows such as R09 W01 E25; all if none")
    parser.add_argument("--missing", action="store_true", help="only what nothing shows")
    parser.add_argument("--gaps", action="store_true", help="only what is not shown whole")
    parser.add_argument("--markdown", action="store_true", help="a table with links")
    return parser.parse_args(words)


def is_chosen(row: MissionRow, asked: argparse.Namespace) -> bool:
    if asked.names and row.name not in asked.names:
        return False
    return row.state == "nothing" if asked.missing else row.state != "whole" if asked.gaps else True


def text(row: MissionRow) -> str:
    """A row for a terminal, a reference a line."""
    lines = [f"{row.name}  {row.state:<8} {row.title}"]
    lines += [f"{'':14} {kind.removesuffix('s'):<7} {one}" for kind in KINDS for one in getattr(row, kind)]
    return "\n".join([*lines, *([f"{'':14} missing {row.missing}"] if row.missing else [])])


def markdown(rows: Sequence[MissionRow]) -> str:
    """A table for a page at the top of the repository."""
    lines = ["| | what | shown | by | missing |", "|---|---|---|---|---|"]
    for row in rows:
        named = [f"[{one.partition('::')[2]}]({one.partition('::')[0]})" for one in row.tests]
        named += [f"`anyformer lab run {claim}`" for claim in row.claims]
        named += [f"[{one}]({one})" for one in (*row.recipes, *row.pages)]
        lines.append(f"| {row.name} | {row.title} | {row.state} | {', '.join(named)} | {row.missing} |")
    return "\n".join(lines)


def summary(rows: Sequence[MissionRow]) -> list[str]:
    """How many of each kind are whole, in part and not shown."""
    found = []
    for letter, name in NAMES.items():
        states = [row.state for row in rows if row.name[0] == letter]
        counts = ", ".join(f"{states.count(state)} {state}" for state in ("whole", "in part", "nothing"))
        found.append(f"{len(states)} {name}: {counts}")
    return found


if __name__ == "__main__":
    sys.exit(main())

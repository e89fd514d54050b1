"""Log: where lines for people go, one decision or result each."""

from __future__ import annotations

from collections.abc import Callable

Log = Callable[[str], None]


def silence(line: str) -> None:
    """Where lines go that nobody wants."""


def keep_lines(log: Log) -> tuple[list[str], Log]:
    """A list, and a log that adds each line to it as well.

    >>> lines, log = keep_lines(silence)
    >>> log("rows     12")
    >>> lines
    ['rows     12']
    """
    lines: list[str] = []

    def log_and_keep(line: str) -> None:
        lines.append(line)
        log(line)

    return lines, log_and_keep

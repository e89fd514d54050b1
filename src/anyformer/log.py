"""Log: a function for progress lines, one decision or result each."""

from __future__ import annotations

from collections.abc import Callable

Log = Callable[[str], None]


def silence(line: str) -> None:
    """A log that drops all lines."""


def keep_lines(log: Log) -> tuple[list[str], Log]:
    """A list, and a log that also appends each line to it.

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

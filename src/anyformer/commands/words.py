"""How verbs speak: data on stdout, messages on stderr."""

from __future__ import annotations

import logging
import os
import sys

import typer

from anyformer.errors import DONE


def write(text: str) -> None:
    """One piece of data to stdout. A reader that has gone (`| head`) ends the command quietly."""
    put(text.rstrip("\n") + "\n")


def write_piece(text: str) -> None:
    """A piece of what a model writes, at once; a terminal gets nothing that could move its cursor."""
    if sys.stdout.isatty():
        text = "".join(c if c.isprintable() or c in "\n\t" else "·" for c in text)
    put(text)


def put(text: str) -> None:
    """Text to stdout as it is."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes stdout once more at exit; give it a place that still takes the bytes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(DONE) from None


def note(text: str) -> None:
    """One message to stderr."""
    sys.stderr.write(text.rstrip("\n") + "\n")


def short(count: int) -> str:
    """A count as people say it.

    >>> short(124_439_808), short(950)
    ('124.4 M', '950')
    """
    for size, unit in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "k")):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return str(count)


def configure_messages(quiet: bool = False) -> None:
    """Show the library's log on stderr; the library itself only logs, under the name `anyformer`."""
    logger = logging.getLogger("anyformer")
    if not any(type(handler) is logging.StreamHandler for handler in logger.handlers):
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(Message())
        logger.addHandler(handler)
    logger.setLevel(logging.WARNING if quiet else logging.INFO)


class Message(logging.Formatter):
    """News is the text alone; anything worse starts with its level."""

    def format(self, record: logging.LogRecord) -> str:
        """`warning: …` for a warning, the bare text for information."""
        text = super().format(record)
        return text if record.levelno <= logging.INFO else f"{record.levelname.lower()}: {text}"

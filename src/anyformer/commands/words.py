"""How verbs speak: data on stdout, messages on stderr.

Names, cells and texts come from files that nobody has looked at. What a person sees of them goes through `readable`;
data that goes into a file or a pipe stays as it is.
"""

from __future__ import annotations

import logging
import os
import sys

import typer

from anyformer.errors import DONE
from anyformer.plain_text import printable


def readable(text: str) -> str:
    r"""The text for a terminal: ends of lines and tabs stay, all else that would act on it is escaped.

    >>> readable("a\tb\x1b[31mc\n")
    'a\tb\\x1b[31mc\n'
    """
    return "\n".join("\t".join(map(printable, line.split("\t"))) for line in text.split("\n"))


def write(text: str) -> None:
    """One piece of data to stdout. A reader that has gone (`| head`) ends the command quietly."""
    write_piece(text.rstrip("\n") + "\n")


def write_piece(text: str) -> None:
    """A piece of data, such as what a model writes, at once; only a file or a pipe gets it as it is."""
    put(readable(text) if sys.stdout.isatty() else text)


def write_line(line: str) -> None:
    """One line for people on stdout."""
    put(printable(line) + "\n")


def put(text: str) -> None:
    """Text to stdout as it is; what its encoding cannot say is escaped."""
    encoding = sys.stdout.encoding or "utf-8"
    try:
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes stdout once more at exit; give it a place that still takes the bytes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(DONE) from None


def note(text: str) -> None:
    """A message to stderr, one line or several."""
    sys.stderr.write(readable(text.rstrip("\n")) + "\n")


def note_line(line: str) -> None:
    """One line of a message to stderr."""
    note(printable(line))


def configure_messages(quiet: bool = False) -> None:
    """Show the library's log on stderr; the library itself only logs, under the name `anyformer`."""
    logger = logging.getLogger("anyformer")
    if not any(type(handler) is logging.StreamHandler for handler in logger.handlers):
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(MessageFormatter())
        logger.addHandler(handler)
    logger.setLevel(logging.WARNING if quiet else logging.INFO)


class MessageFormatter(logging.Formatter):
    """News is the text alone; anything worse starts with its level."""

    def format(self, record: logging.LogRecord) -> str:
        """`warning: …` for a warning, the bare text for information."""
        text = readable(super().format(record))
        return text if record.levelno <= logging.INFO else f"{record.levelname.lower()}: {text}"

"""Output of commands: data on stdout, messages on stderr.

Names, cells and texts come from untrusted files. Text shown on a terminal goes through `readable`; data written to a
    file or a pipe stays verbatim.
"""

from __future__ import annotations

import logging
import os
import sys

import typer

from anyformer.errors import DONE
from anyformer.plain_text import printable


def readable(text: str) -> str:
    r"""Escape text for a terminal: line ends and tabs stay, other control characters are escaped.

    >>> readable("a\tb\x1b[31mc\n")
    'a\tb\\x1b[31mc\n'
    """
    return "\n".join("\t".join(map(printable, line.split("\t"))) for line in text.split("\n"))


def write(text: str) -> None:
    """Write one piece of data to stdout; a closed pipe (`| head`) ends the command silently."""
    write_piece(text.rstrip("\n") + "\n")


def write_piece(text: str) -> None:
    """Write and flush a piece of data, such as generated text; escaped on a terminal, verbatim otherwise."""
    put(readable(text) if sys.stdout.isatty() else text)


def write_line(line: str) -> None:
    """Write one line for people to stdout."""
    put(printable(line) + "\n")


def put(text: str) -> None:
    """Write text to stdout verbatim; characters outside its encoding are escaped."""
    encoding = sys.stdout.encoding or "utf-8"
    try:
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes stdout at exit; redirect it so that this does not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(DONE) from None


def note(text: str) -> None:
    """Write a message to stderr, one line or several."""
    sys.stderr.write(readable(text.rstrip("\n")) + "\n")


def note_line(line: str) -> None:
    """Write one line of a message to stderr."""
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
    """Formats information as plain text, and other levels with a prefix."""

    def format(self, record: logging.LogRecord) -> str:
        """`warning: …` for a warning, the bare text for information."""
        text = readable(super().format(record))
        return text if record.levelno <= logging.INFO else f"{record.levelname.lower()}: {text}"

"""A stream wrapper that never raises when the stream is closed, full or cannot encode a character."""

from __future__ import annotations

from typing import TextIO


class Safe:
    """The few methods of a text stream that a display needs; after a failed write all output is dropped.

    >>> import io
    >>> stream = io.StringIO()
    >>> safe = Safe(stream)
    >>> stream.close()
    >>> safe.write("hello"), safe.gone
    (5, True)
    """

    def __init__(self, stream: TextIO | None) -> None:
        self.stream, self.gone = stream, stream is None

    @property
    def encoding(self) -> str:
        return getattr(self.stream, "encoding", None) or "ascii"

    def isatty(self) -> bool:
        """Whether the stream is a terminal."""
        try:
            return self.stream is not None and self.stream.isatty()
        except (OSError, ValueError):  # closed
            return False

    def fileno(self) -> int:
        """The descriptor, or OSError as streams without one raise it."""
        if self.stream is None:
            raise OSError("no stream")
        return self.stream.fileno()

    def write(self, text: str) -> int:
        """Write, with question marks for characters that cannot be encoded."""
        if self.gone or self.stream is None:
            return len(text)
        try:
            self.stream.write(text)
        except UnicodeEncodeError:
            self.write(text.encode(self.encoding, "replace").decode(self.encoding))
        except (OSError, ValueError):
            self.gone = True
        return len(text)

    def flush(self) -> None:
        """Flush, unless the stream is closed."""
        if self.gone or self.stream is None:
            return
        try:
            self.stream.flush()
        except (OSError, ValueError):
            self.gone = True

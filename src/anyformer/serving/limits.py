"""Limits on what a client may request, send and leave unread."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Limits of connections and requests. Limits of single fields are in `request_schemas`."""

    body: int = 4 * 1024 * 1024  # bytes of a request's body
    headers: int = 32 * 1024  # bytes of its first line and headers
    receive: float = 10.0  # seconds to receive a whole request
    output: int = 16 * 1024  # bytes buffered for one client here, and as many in the kernel
    ahead: int = 32  # tokens of a stream queued behind those bytes before the sequence is paused
    stall: float = 30.0  # seconds a client may read nothing
    stuck: float = 30.0  # seconds without progress after which the server is not ready
    new_tokens: int = 1024  # default maximal new tokens of a chat completion
    choices: int = 128  # outputs per request, over all prompts
    deadline: float | None = None  # most seconds per request; a request may ask for less


BUSY_AGAIN = 1  # default retry-after in seconds

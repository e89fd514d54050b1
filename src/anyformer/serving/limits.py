"""How much one client may ask for, send and keep waiting."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Bounds at the edge of the server. Bounds of single fields are in `request_schemas`."""

    body: int = 4 * 1024 * 1024  # bytes of a request's body
    headers: int = 32 * 1024  # bytes of its first line and headers
    receive: float = 10.0  # seconds until a request has come in whole
    output: int = 16 * 1024  # bytes waiting for one client here, and as many in the kernel; what comes then waits
    ahead: int = 32  # tokens of a stream that wait behind those bytes, before the sequence is paused
    stall: float = 30.0  # seconds a client may read nothing of what waits for it
    stuck: float = 30.0  # seconds without progress after which the server says it is not ready
    new_tokens: int = 1024  # of a chat answer whose request names no number
    choices: int = 128  # texts of one request, all prompts together
    deadline: float | None = None  # seconds a request may take, where it names no fewer


BUSY_AGAIN = 1  # seconds after which a rejected client may retry, where nobody knows better

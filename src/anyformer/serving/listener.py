"""Accepting connections: a bounded number, keeping file descriptors for the server's own needs."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import resource
import socket
import time
from collections.abc import Callable

from anyformer.errors import UserError
from anyformer.serving.error_responses import service_unavailable

log = logging.getLogger("anyformer")
MOST = 1024  # connections, even if the system allows more: each may buffer some hundred KB
RESERVE = 32  # descriptors for everything else: model files, the template process, sockets about to be rejected
AT_ONCE = 16  # connections accepted per event-loop turn
PAUSE = 0.5  # seconds without accepting when the system has no descriptors left
QUIET = 10.0  # seconds between equal log lines
BACKLOG = 1024  # pending connections in the kernel
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def most_connections(asked: int | None) -> int:
    """Maximal number of connections: as requested, or as the limit of open files allows, minus the reserve.

    >>> most_connections(1)
    1
    """
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    room = MOST if allowed == resource.RLIM_INFINITY else allowed - RESERVE
    wanted = 1 if asked is None else asked
    if room < wanted:
        raise UserError(f"{wanted} connections need {wanted + RESERVE} open files, and {allowed} are allowed",
                        where="--connections", fix=f"run ulimit -n {wanted + RESERVE} first")  # fmt: skip
    return min(MOST, room) if asked is None else asked


class Listener:
    """Hands accepted sockets to a protocol; above `most` they get a 503 and are closed.

    asyncio's own server accepts without limit, and when descriptors run out it keeps logging a traceback for every
    pending connection.
    """

    def __init__(self, listening: socket.socket, make: Callable[[], asyncio.Protocol], most: int,
                 count: Callable[[], int]) -> None:  # fmt: skip
        self.listening, self.make, self.most, self.count = listening, make, most, count
        self.loop = asyncio.get_running_loop()
        self.joining: set[asyncio.Task[None]] = set()  # accepted, not yet counted as connections
        self.refused = 0
        self.told: dict[str, float] = {}  # time each log line was last written
        self.resuming: asyncio.TimerHandle | None = None
        refusal = service_unavailable("the server has no room for more connections", "too_many_connections")
        body = json.dumps(refusal.body).encode()
        headers = "".join(f"{name.lower()}: {value}\r\n" for name, value in refusal.headers.items())
        self.answer = (f"HTTP/1.1 503 Service Unavailable\r\n{headers}content-type: application/json\r\n"
                       f"connection: close\r\ncontent-length: {len(body)}\r\n\r\n").encode() + body  # fmt: skip

    def start(self) -> None:
        """Start accepting connections."""
        self.listening.setblocking(False)
        self.listening.listen(BACKLOG)
        self.loop.add_reader(self.listening, self.accept)

    def close(self) -> None:
        """Stop accepting connections."""
        if self.resuming is not None:
            self.resuming.cancel()
        if self.listening.fileno() >= 0:
            self.loop.remove_reader(self.listening)
            self.listening.close()

    def accept(self) -> None:
        """Accept some pending connections."""
        for _ in range(AT_ONCE):
            try:
                line, _ = self.listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in EXHAUSTED:
                    raise
                self.pause(error)
                return
            if self.count() + len(self.joining) >= self.most:
                self.reject(line)
                continue
            line.setblocking(False)
            task = self.loop.create_task(self.join(line))
            self.joining.add(task)
            task.add_done_callback(self.joining.discard)

    async def join(self, line: socket.socket) -> None:
        """Turn an accepted socket into a connection."""
        try:
            await self.loop.connect_accepted_socket(self.make, line)
        except OSError:  # the client has disconnected already
            line.close()

    def reject(self, line: socket.socket) -> None:
        """Send a 503 without blocking, and close."""
        self.refused += 1
        with contextlib.closing(line), contextlib.suppress(OSError):
            line.setblocking(False)
            line.send(self.answer)
            line.shutdown(socket.SHUT_WR)
            line.recv(65_536)  # closing with unread bytes would reset the connection and lose the response
        self.warn(f"{self.most} connections are open; more are refused (--connections, ulimit -n)")

    def pause(self, error: OSError) -> None:
        """Stop accepting for a while: the kernel keeps reporting pending connections, and the loop would spin."""
        self.loop.remove_reader(self.listening)
        self.resuming = self.loop.call_later(PAUSE, self.loop.add_reader, self.listening, self.accept)
        self.warn(f"no connection can be taken ({error.strerror})")

    def warn(self, line: str) -> None:
        """Log a line, rate-limited."""
        now = time.monotonic()
        if now - self.told.get(line, -QUIET) >= QUIET:
            self.told[line] = now
            log.warning(line)

"""One connection, with the deadlines that uvicorn lacks: for a request to come in, and for an answer to be taken."""

from __future__ import annotations

import contextlib
import fcntl
import json
import socket
import struct
import sys
import termios
import time
from collections.abc import Iterable
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from anyformer.serving.limits import Limits
from anyformer.serving.refusals import Refusal

# Of linux/tcp.h: bytes the kernel takes and does not send yet; facts of a line, and where the count of bytes stands.
NOT_SENT, TCP_INFO, BYTES_ACKED = 25, 11, 120


class TooLarge(Exception):
    """The headers of a request."""


def too_large(limits: Limits) -> Refusal:
    """431."""
    return Refusal(431, f"the headers are larger than {limits.headers} bytes", code="headers_too_large")


def connection_class(limits: Limits) -> type[HttpToolsProtocol]:
    """uvicorn's protocol under these limits."""

    class Connection(HttpToolsProtocol):
        """Counts the bytes of headers, and remembers since when it waits for what."""

        reading_since: float | None = None  # the first byte of a request has been awaited, or its rest, since then
        in_headers = True
        header_bytes = 0
        taken = 0  # a number that changes when the client takes something
        taken_at = 0.0

        def connection_made(self, transport: Any) -> None:
            """A client has come; from now on its request is awaited."""
            super().connection_made(transport)
            self.reading_since = time.monotonic()
            # The kernel would take megabytes for a client that reads nothing, and nobody would notice.
            transport.set_write_buffer_limits(high=limits.output)
            line = transport.get_extra_info("socket")
            with contextlib.suppress(OSError):
                line.setsockopt(socket.IPPROTO_TCP, NOT_SENT, limits.output)
                # A head and its body are two packets; the second would wait 40 ms for the first to be acknowledged.
                line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def data_received(self, data: bytes) -> None:
            """More bytes of a request."""
            if self.reading_since is None:
                self.reading_since = time.monotonic()
            if self.in_headers:
                self.header_bytes += len(data)
            super().data_received(data)
            if self.in_headers and self.header_bytes > limits.headers and not self.transport.is_closing():
                self.refuse(too_large(limits))

        def on_headers_complete(self) -> None:
            """The body comes next."""
            self.in_headers, self.header_bytes = False, 0
            if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > limits.headers:
                raise TooLarge  # the parser stops, and `send_400_response` is called
            super().on_headers_complete()

        def on_message_complete(self) -> None:
            """The request is here."""
            self.reading_since, self.in_headers = None, True
            super().on_message_complete()

        def send_400_response(self, msg: str) -> None:
            """Bytes that are no HTTP, or too many of them before the body."""
            error = sys.exc_info()[1]
            large = error is not None and isinstance(error.__context__, TooLarge)
            self.refuse(too_large(limits) if large else Refusal(400, "this is no HTTP request", code="invalid_http"))

        def refuse(self, refusal: Refusal) -> None:
            """Answer without the application, and hang up."""
            body = json.dumps(refusal.body).encode()
            if self.cycle is None or self.cycle.response_complete:  # else an answer is under way
                head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
                self.transport.write(STATUS_LINE[refusal.status] + head + body)
            self.transport.close()

        def look(self, now: float) -> None:
            """Let go of a client that sends or reads too slowly."""
            if self.reading_since is not None and now - self.reading_since > limits.receive:
                asking = self.cycle is not None and not self.cycle.response_complete
                if not asking:
                    self.refuse(Refusal(408, f"no request came within {limits.receive:.0f} s", code="slow_request"))
                elif now - self.reading_since > limits.receive + 2:  # the application has had its time to say so
                    self.cut()
            line = self.transport.get_extra_info("socket")
            left = self.transport.get_write_buffer_size() + bytes_in_kernel(line)
            taken = bytes_taken(line, left) if left else 0
            if not left or taken != self.taken:
                self.taken, self.taken_at = taken, now
            elif now - self.taken_at > limits.stall:
                self.cut()

        def timeout_keep_alive_handler(self) -> None:
            """Nothing more was asked for a while. A last answer that is still being taken is left to `look`.

            Closed now it would be left to the kernel, which keeps it for minutes where nobody reads.
            """
            if self.transport.is_closing() or not bytes_in_kernel(self.transport.get_extra_info("socket")):
                super().timeout_keep_alive_handler()
            else:
                self.timeout_keep_alive_task = self.loop.call_later(1.0, self.timeout_keep_alive_handler)

        def cut(self) -> None:
            """Hang up at once; what the client has not taken is thrown away, by the kernel too."""
            line = self.transport.get_extra_info("socket")
            with contextlib.suppress(OSError):
                line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.transport.abort()

    return Connection


def bytes_in_kernel(line: socket.socket) -> int:
    """How much was handed to the kernel that the other side has not acknowledged; 0 where the kernel does not say."""
    try:
        return int(struct.unpack("i", fcntl.ioctl(line.fileno(), termios.TIOCOUTQ, bytes(4)))[0])
    except OSError:
        return 0


def bytes_taken(line: socket.socket, left: int) -> int:
    """How much the other side has acknowledged; elsewhere than on Linux, what is left to be sent must do."""
    try:
        return int(struct.unpack_from("=Q", line.getsockopt(socket.IPPROTO_TCP, TCP_INFO, 128), BYTES_ACKED)[0])
    except (OSError, struct.error):
        return -left


def look_at(connections: Iterable[Any]) -> None:
    """Look at all connections once."""
    now = time.monotonic()
    for connection in list(connections):
        connection.look(now)

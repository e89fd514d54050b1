"""One connection, with timeouts that uvicorn lacks: for receiving a request and for the client to read the response."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import socket
import struct
import sys
import termios
import time
from collections.abc import Callable, Iterable
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from anyformer.serving.error_responses import HTTPError
from anyformer.serving.limits import Limits

# From linux/tcp.h: TCP_NOTSENT_LOWAT, TCP_INFO, and the offset of tcpi_bytes_acked.
NOT_SENT, TCP_INFO, BYTES_ACKED = 25, 11, 120
ESTABLISHED = 1  # tcpi_state of an open connection, the first byte of TCP_INFO


SLICE = 4096  # bytes parsed at once, to bound the pipelined requests created before they are counted


class MalformedRequest(Exception):
    """Raised during parsing; the parser stops, and `send_400_response` is called."""

    def __init__(self, error: HTTPError) -> None:
        super().__init__(error.message)
        self.error = error


def too_large(limits: Limits) -> HTTPError:
    """431."""
    return HTTPError(431, f"the headers are larger than {limits.headers} bytes", code="headers_too_large")


def too_much_framing() -> HTTPError:
    """400: chunk sizes, chunk extensions and trailers, in place of a body."""
    return HTTPError(400, "the body comes in too many or too small chunks; send Content-Length", code="too_many_chunks")


def check_framing(headers: Iterable[tuple[bytes, bytes]], version: str) -> None:
    """The end of a body must be unambiguous: a proxy that reads it differently would allow request smuggling.

    The parser itself rejects two lengths, a length with chunks, folded lines and bare line ends.
    """
    if version not in ("1.0", "1.1"):
        raise MalformedRequest(HTTPError(400, "this server speaks HTTP/1.1", code="http_version"))
    coded = [value.strip().lower() for name, value in headers if name == b"transfer-encoding"]
    if coded and (coded != [b"chunked"] or version == "1.0"):
        raise MalformedRequest(HTTPError(400, "of transfer encodings only chunked is known", code="transfer_encoding"))


def name_host(headers: list[tuple[bytes, bytes]], url: bytes) -> None:
    """A target in absolute form (`GET http://name/path`) overrides the Host header (RFC 9112, 3.2.2)."""
    if url.startswith((b"/", b"*")):
        return
    authority = url.partition(b"://")[2].partition(b"/")[0]
    headers[:] = [(name, value) for name, value in headers if name != b"host"] + [(b"host", authority)]


class PausedFlow(FlowControl):
    """uvicorn's flow control, which resumes reading when the application wants more of a body, unless bytes are
    unparsed."""

    def __init__(self, transport: asyncio.Transport, is_held: Callable[[], bool]) -> None:
        super().__init__(transport)
        self.is_held = is_held

    def resume_reading(self) -> None:
        """Resume reading, unless unparsed bytes are held."""
        if not self.is_held():
            super().resume_reading()


def connection_class(limits: Limits) -> type[HttpToolsProtocol]:
    """uvicorn's protocol class with these limits."""

    class Connection(HttpToolsProtocol):
        """Bounds framing overhead, parses one request ahead, and tracks what it has been waiting for since when."""

        reading_since: float | None = None  # waiting for a request, or its rest, since then
        in_headers = True
        overhead = 0  # non-body bytes of this request: headers, then chunk sizes, extensions and trailers
        body_bytes = 0
        taken = 0  # changes whenever the client reads something
        taken_at = 0.0

        def connection_made(self, transport: Any) -> None:
            """A client has connected: start waiting for its request."""
            super().connection_made(transport)
            self.unparsed = b""  # bytes received after a request that is not answered yet
            self.flow = PausedFlow(transport, lambda: bool(self.unparsed))
            self.cycles: list[RequestResponseCycle] = []  # unanswered requests, the oldest first
            self.reading_since = time.monotonic()
            # The kernel would buffer megabytes for a client that reads nothing, unnoticed.
            transport.set_write_buffer_limits(high=limits.output)
            line = transport.get_extra_info("socket")
            with contextlib.suppress(OSError):
                line.setsockopt(socket.IPPROTO_TCP, NOT_SENT, limits.output)
                # Head and body are two packets; without TCP_NODELAY the second waits 40 ms for the first's
                # acknowledgement.
                line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def connection_lost(self, exc: Exception | None) -> None:
            """The client has disconnected: notify every pipelined request, not only the newest."""
            self.unparsed = b""
            for cycle in self.cycles:
                cycle.disconnected = True
                cycle.message_event.set()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            """More bytes of a request, or of the next ones."""
            self.unparsed += data
            self.parse()

        def parse(self) -> None:
            """Parse received bytes in slices, up to the next request that must wait for its turn."""
            while self.unparsed and not self.pipeline and not self.transport.is_closing():
                part, self.unparsed = self.unparsed[:SLICE], self.unparsed[SLICE:]
                if self.reading_since is None:
                    self.reading_since = time.monotonic()
                self.overhead += len(part)
                super().data_received(part)
                self.check_overhead()
            if self.unparsed:
                self.flow.pause_reading()
            elif not self.pipeline:
                self.flow.resume_reading()

        def check_overhead(self) -> None:
            """Reject requests with excessive framing overhead."""
            self.overhead = max(0, self.overhead)
            if self.transport.is_closing():
                return
            if self.in_headers and self.overhead > limits.headers:
                self.reject(too_large(limits))
            elif self.overhead > limits.headers + self.body_bytes:
                self.reject(too_much_framing())

        def on_message_begin(self) -> None:
            """A request begins; drop the answered ones."""
            self.in_headers, self.body_bytes = True, 0
            self.reading_since = self.reading_since or time.monotonic()
            self.cycles = [cycle for cycle in self.cycles if not cycle.response_complete]
            super().on_message_begin()

        def on_header(self, name: bytes, value: bytes) -> None:
            """A header; trailers, which follow the body, are dropped.

            Merged into the headers, as uvicorn does, a trailer could add a key or a length after they were checked.
            """
            if self.in_headers:
                super().on_header(name, value)

        def on_headers_complete(self) -> None:
            """The headers are complete."""
            self.in_headers, self.overhead = False, 0
            if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > limits.headers:
                raise MalformedRequest(too_large(limits))
            check_framing(self.headers, self.parser.get_http_version())
            name_host(self.headers, self.url)
            super().on_headers_complete()
            self.cycles.append(self.cycle)
            if self.parser.should_upgrade():
                self.cycle.keep_alive = False  # upgrades are not supported, and the parser has stopped

        def on_body(self, body: bytes) -> None:
            """A part of the body."""
            self.overhead -= len(body)
            self.body_bytes += len(body)
            super().on_body(body)

        def on_message_complete(self) -> None:
            """The request is complete."""
            self.reading_since, self.in_headers, self.overhead = None, True, 0
            super().on_message_complete()

        def on_response_complete(self) -> None:
            """A response is complete; continue with the bytes after its request."""
            super().on_response_complete()
            if self.unparsed:
                self.loop.call_soon(self.parse)

        def send_400_response(self, msg: str) -> None:
            """Malformed HTTP."""
            error = sys.exc_info()[1]
            cause = None if error is None else error.__context__
            wrong = HTTPError(400, "this is not an HTTP request", code="invalid_http")
            self.reject(cause.error if isinstance(cause, MalformedRequest) else wrong)

        def reject(self, error: HTTPError) -> None:
            """Send an error without the application and close; never into a response in progress."""
            left = [cycle for cycle in self.cycles if not cycle.response_complete]
            alone = not left or (left == [self.cycle] and not self.in_headers and not self.cycle.response_started)
            for cycle in left:
                cycle.disconnected = True
                cycle.message_event.set()
            if alone:
                body = json.dumps(error.body).encode()
                head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
                self.transport.write(STATUS_LINE[error.status] + head + body)
            self.transport.close()

        def answering(self) -> bool:
            """Whether a response is in progress or queued."""
            return any(not cycle.response_complete for cycle in self.cycles)

        def look(self, now: float) -> None:
            """Disconnect a client that sends or reads too slowly."""
            if self.reading_since is not None and self.unparsed:
                self.reading_since = now  # it has sent enough; the delay is ours
            if self.reading_since is not None and now - self.reading_since > limits.receive:
                if not self.answering() and self.in_headers:
                    self.reject(HTTPError(408, f"no request came within {limits.receive:.0f} s", code="slow_request"))
                elif not self.answering():
                    self.cut()  # it has its response, and still sends its body
                elif now - self.reading_since > limits.receive + 2:  # the application had its chance to respond
                    self.cut()
            line = self.transport.get_extra_info("socket")
            if self.unparsed and has_disconnected(line):  # a close is not noticed while reading is paused
                self.cut()
                return
            left = self.transport.get_write_buffer_size() + bytes_in_kernel(line)
            taken = bytes_taken(line, left) if left else 0
            if not left or taken != self.taken:
                self.taken, self.taken_at = taken, now
            elif now - self.taken_at > limits.stall:
                self.cut()

        def timeout_keep_alive_handler(self) -> None:
            """Keep-alive timeout. If the last response is still being read, `look` handles it.

            Closing now would leave the response to the kernel, which keeps it for minutes if nobody reads.
            """
            if self.transport.is_closing() or not bytes_in_kernel(self.transport.get_extra_info("socket")):
                super().timeout_keep_alive_handler()
            else:
                self.timeout_keep_alive_task = self.loop.call_later(1.0, self.timeout_keep_alive_handler)

        def cut(self) -> None:
            """Abort the connection; unread data is dropped, by the kernel too."""
            line = self.transport.get_extra_info("socket")
            with contextlib.suppress(OSError):
                line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.transport.abort()

    return Connection


def bytes_in_kernel(line: socket.socket) -> int:
    """Unacknowledged bytes in the kernel; 0 if unknown."""
    try:
        return int(struct.unpack("i", fcntl.ioctl(line.fileno(), termios.TIOCOUTQ, bytes(4)))[0])
    except OSError:
        return 0


def bytes_taken(line: socket.socket, left: int) -> int:
    """Bytes acknowledged by the peer; outside Linux, a proxy from the bytes left to send."""
    try:
        return int(struct.unpack_from("=Q", line.getsockopt(socket.IPPROTO_TCP, TCP_INFO, 128), BYTES_ACKED)[0])
    except (OSError, struct.error):
        return -left


def has_disconnected(line: socket.socket) -> bool:
    """Whether the peer has closed the connection; if unknown, that is noticed on reading."""
    try:
        return line.getsockopt(socket.IPPROTO_TCP, TCP_INFO, 8)[0] != ESTABLISHED
    except OSError:
        return False


def check_connections(connections: Iterable[Any]) -> None:
    """Check all connections once."""
    now = time.monotonic()
    for connection in list(connections):
        connection.look(now)

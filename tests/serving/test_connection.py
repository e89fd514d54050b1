"""The line itself, over a real socket: slow senders, large headers, stalled readers and bytes that are no HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from anyformer.serving.connection import bytes_in_kernel, check_connections, connection_class
from anyformer.serving.limits import Limits
from anyformer.serving.server import QuietServer

LIMITS = Limits(receive=0.4, stall=0.6, headers=2000)
HEAD = b"GET /large HTTP/1.1\r\nHost: 127.0.0.1\r\n"


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answers with a little, with what the kernel takes at once, or with more than a line holds."""
    size = {"/large": 64 * 1024 * 1024, "/some": 12_000}.get(scope["path"], 2)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", str(size).encode())]})
    for at in range(0, size, 65_536):
        await send({"type": "http.response.body", "body": b"x" * min(65_536, size), "more_body": at + 65_536 < size})


@contextlib.contextmanager
def running(
    protocol: type[HttpToolsProtocol], looking: bool = True, kept: int = 5
) -> Iterator[tuple[int, QuietServer]]:
    """A server in a thread; its port. An idle line is `kept` so many seconds."""
    config = uvicorn.Config(app, http=protocol, ws="none", lifespan="off", log_config=None, timeout_graceful_shutdown=1,
                            access_log=False, timeout_keep_alive=kept)  # fmt: skip
    server = QuietServer(config)
    listening = socket.create_server(("127.0.0.1", 0))

    async def work() -> None:
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        while not serving.done():
            await asyncio.sleep(0.05)
            if looking:
                check_connections(server.server_state.connections)
        for connection in list(server.server_state.connections):
            connection.transport.abort()
        await asyncio.sleep(0.02)  # closed lines are taken down by the loop

    thread = threading.Thread(target=lambda: asyncio.run(work()))
    thread.start()
    try:
        yield listening.getsockname()[1], server
    finally:
        server.should_exit = True
        thread.join(10)
        listening.close()


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with running(connection_class(LIMITS)) as (port, _):
        yield port


def told(port: int, *parts: bytes, pause: float = 0.0, patience: float = 3.0) -> tuple[bytes, float]:
    """What comes back until the line is closed, and when that was."""
    began, got = time.monotonic(), b""
    with socket.create_connection(("127.0.0.1", port), timeout=patience) as line, contextlib.suppress(OSError):
        for part in parts:
            line.sendall(part)
            time.sleep(pause)
        while part := line.recv(65_536):
            got += part
    return got, time.monotonic() - began


def refusal(got: bytes) -> tuple[int, dict[str, Any]]:
    head, _, body = got.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]


@pytest.mark.parametrize("parts", [(), (b"GET",), (b"GET / HTTP/1.1\r\n", b"Host: a\r\n", b"X: y\r\n", b"Y: z\r\n")])
def test_who_does_not_finish_a_request_is_told_so(port: int, parts: tuple[bytes, ...]) -> None:
    got, seconds = told(port, *parts, pause=0.15)
    status, error = refusal(got)
    assert status == 408 and error["code"] == "slow_request" and seconds < 1.5


def test_the_second_request_of_a_line_has_no_more_time(port: int) -> None:
    got, seconds = told(port, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"GET / HT", pause=0.1)
    assert got.startswith(b"HTTP/1.1 200") and b"HTTP/1.1 408" in got and seconds < 1.5


@pytest.mark.parametrize("parts", [
    (b"GET / HTTP/1.1\r\nX: " + b"a" * 3000 + b"\r\n\r\n",),
    (b"GET / HTTP/1.1\r\n", *[b"X: " + b"a" * 400 + b"\r\n"] * 5),
    (b"GET /" + b"a" * 3000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",), (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 900 + b"\r\n",),
])  # fmt: skip
def test_large_headers(port: int, parts: tuple[bytes, ...]) -> None:
    status, error = refusal(told(port, *parts)[0])
    assert status == 431 and error["code"] == "headers_too_large"


@pytest.mark.parametrize(
    "raw", [b"\x16\x03\x01\x00\x01", b"HELLO\r\n\r\n", b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n"]
)
def test_no_http(port: int, raw: bytes) -> None:
    status, error = refusal(told(port, raw)[0])
    assert status == 400 and error["code"] == "invalid_http"


def stalled(port: int, seconds: float, path: bytes = b"/large") -> bool:
    """Whether the server hangs up on a client that reads nothing of an answer."""
    with socket.socket() as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        line.connect(("127.0.0.1", port))
        line.sendall(HEAD.replace(b"/large", path) + b"\r\n")
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(0.05)
            if line.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 8)[0] != 1:  # no longer ESTABLISHED
                return True
    return False


@pytest.mark.parametrize("path", [b"/large", b"/some"])
def test_a_reader_that_stalls_is_let_go(port: int, path: bytes) -> None:
    assert stalled(port, 3.0, path)


def test_one_that_left_the_last_answer_unread_is_let_go_by_us_not_by_the_kernel() -> None:
    with running(connection_class(LIMITS), kept=0) as (port, _):
        assert stalled(port, 3.0, b"/some")
    with running(HttpToolsProtocol, looking=False, kept=0) as (port, _):  # control: closed, and kept by the kernel
        assert not stalled(port, 1.2, b"/some")


def test_the_kernel_takes_little_that_is_not_read() -> None:
    """What has left the application's hands, while the client reads nothing."""
    taken = {}
    for name, protocol in (("ours", connection_class(LIMITS)), ("uvicorn's", HttpToolsProtocol)):
        with running(protocol, looking=False) as (port, server), socket.socket() as line:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            line.connect(("127.0.0.1", port))
            line.sendall(HEAD + b"\r\n")
            time.sleep(0.3)
            (connection,) = server.server_state.connections
            left = bytes_in_kernel(connection.transport.get_extra_info("socket"))  # type: ignore[union-attr]
            taken[name] = left + connection.transport.get_write_buffer_size()  # type: ignore[union-attr]
    assert taken["ours"] <= 2 * LIMITS.output + 65_536 + 4096 < taken["uvicorn's"], taken


def test_one_that_reads_slowly_is_not(port: int) -> None:
    got = 0
    with socket.socket() as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)  # small, so that it is filled again and again
        line.settimeout(5)
        line.connect(("127.0.0.1", port))
        line.sendall(HEAD + b"\r\n")
        until = time.monotonic() + 1.5
        while time.monotonic() < until:
            got += len(line.recv(65_536))
            time.sleep(0.02)
        while got < 64 * 1024 * 1024 and (part := line.recv(1 << 20)):
            got += len(part)
    assert got > 64 * 1024 * 1024


def wait_for_a_body(protocol: type[HttpToolsProtocol]) -> float:
    """Seconds of the second answer on a line, in the median of a few: a head and a body, sent apart."""
    took = []
    with (
        running(protocol, looking=False) as (port, _),
        socket.create_connection(("127.0.0.1", port), timeout=3) as line,
    ):
        for _ in range(9):
            began, got = time.monotonic(), b""
            line.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            while not got.endswith(b"\r\n\r\nxx"):
                got += line.recv(4096)
            took.append(time.monotonic() - began)
    return sorted(took)[len(took) // 2]


@pytest.mark.alone
def test_a_body_does_not_wait_for_its_head_to_be_acknowledged() -> None:
    assert wait_for_a_body(connection_class(LIMITS)) < 0.02 < wait_for_a_body(HttpToolsProtocol)  # and a control


def test_control_without_the_deadlines_nobody_is_let_go() -> None:
    with running(HttpToolsProtocol, looking=False) as (port, _):
        with pytest.raises(json.JSONDecodeError):
            refusal(told(port, b"GET / HTTP/1.1\r\nHost: a\r\n", patience=1.2)[0] or b"HTTP/1.1 000\r\n\r\n")
        assert not stalled(port, 1.2)
        assert b"HTTP/1.1 200" in told(port, b"GET / HTTP/1.1\r\nX: " + b"a" * 3000 + b"\r\n\r\n", patience=1.0)[0]

"""Bytes sent to hurt: requests that grow beside their body, two readings of one request, pipelines, lines left open."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.attack.trailers import CASES, CHUNKED, HEAD, MOST_GROWTH, Case, attack, watched
from tests.cli.trying import run
from tests.serving.folders import Folders
from tests.serving.server import KEY, Server, serving
from tests.serving.wire import Wire, request

BODY = json.dumps({"prompt": "The", "max_tokens": 1}).encode()
CHUNKS = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
LIVE = b"GET /health/live HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"


def said(port: int, raw: bytes, patience: float = 10.0) -> tuple[list[int], bytes]:
    """The statuses that come back for some bytes, and all of what came until the server closed the line."""
    got = b""
    with socket.create_connection(("127.0.0.1", port), timeout=patience) as line, contextlib.suppress(OSError):
        line.sendall(raw)
        while part := line.recv(65_536):
            got += part
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3})", got)], got


# ---------------------------------------------------------------- memory


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_is_no_body_is_bounded(locked: Server, case: Case) -> None:
    found = attack(locked, case, 3 * 2**20, at_once=2, seconds=4)
    assert not found.bad and found.growth < MOST_GROWTH, found


def test_trailers_are_no_headers(locked: Server, writer: Server) -> None:
    """A key or a type that comes behind the body has not been sent; the connection goes on."""
    late = CHUNKS[:-2] + b"Authorization: Bearer " + KEY.encode() + b"\r\n\r\n"
    assert said(locked.port, CHUNKED + late + LIVE)[0] == [401, 200]
    bare = CHUNKED.replace(b"Content-Type: application/json\r\n", b"")
    late = CHUNKS[:-2] + b"Content-Type: application/json\r\n\r\n"
    assert said(writer.port, bare + late + LIVE)[0] == [415, 200]
    assert said(writer.port, CHUNKED + CHUNKS[:-2] + b"X-Checksum: 1\r\n\r\n" + LIVE)[0] == [200, 200]  # ignored


def test_small_chunks_of_an_honest_client_are_read(writer: Server) -> None:
    body = json.dumps({"prompt": "The", "max_tokens": 1, "stop": ["x" * 200] * 4}).encode()
    answer = writer.client.post("/v1/completions", content=(body[at : at + 1] for at in range(len(body))),
                                headers={"Content-Type": "application/json"})  # fmt: skip
    assert answer.status_code == 200 and "content-length" not in answer.request.headers


# ---------------------------------------------------------------- one reading


TWO_READINGS = {
    "two lengths": HEAD + LENGTH + b"Content-Length: 2\r\n\r\n" + BODY,
    "the same length twice": HEAD + LENGTH * 2 + b"\r\n" + BODY,
    "a list of lengths": HEAD + LENGTH.replace(b"\r\n", b", 2\r\n") + b"\r\n" + BODY,
    "a signed length": HEAD + LENGTH.replace(b": ", b": +") + b"\r\n" + BODY,
    "a length and chunks": HEAD + LENGTH + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKS,
    "chunks and a length": HEAD + b"Transfer-Encoding: chunked\r\n" + LENGTH + b"\r\n" + CHUNKS,
    "chunked twice": HEAD + b"Transfer-Encoding: chunked\r\n" * 2 + b"\r\n" + CHUNKS,
    "chunked, then not": HEAD + b"Transfer-Encoding: chunked, identity\r\n\r\n" + CHUNKS,
    "a packed body": HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + CHUNKS,
    "something like chunked": HEAD + b"Transfer-Encoding: xchunked\r\n\r\n" + CHUNKS,
    "a blank before the colon": HEAD + b"Transfer-Encoding : chunked\r\n\r\n" + CHUNKS,
    "a folded header": HEAD + b"X: a\r\n b\r\n" + LENGTH + b"\r\n" + BODY,
    "a folded encoding": HEAD + b"Transfer-Encoding:\r\n chunked\r\n\r\n" + CHUNKS,
    "bare line feeds": (HEAD + LENGTH + b"\r\n").replace(b"\r\n", b"\n") + BODY,
    "a bare return": HEAD + b"X: a\rContent-Length: 3\r\n" + LENGTH + b"\r\n" + BODY,
    "NUL": HEAD + b"X: a\0b\r\n" + LENGTH + b"\r\n" + BODY,
    "chunks with line feeds": CHUNKED + CHUNKS.replace(b"\r\n", b"\n"),
    "a line feed in a chunk's extension": CHUNKED + CHUNKS.replace(b"\r\n", b";a\nb\r\n", 1),
    "a blank behind a chunk's size": CHUNKED + CHUNKS.replace(b"\r\n", b" \r\n", 1),
    "a chunk below nothing": CHUNKED + b"-1\r\n",
    "a chunk above everything": CHUNKED + b"fffffffffffffffff\r\n",
    "chunks in HTTP/1.0": CHUNKED.replace(b"HTTP/1.1", b"HTTP/1.0") + CHUNKS,
    "HTTP/2.0": LIVE.replace(b"1.1", b"2.0"),
}


@pytest.mark.parametrize("what", TWO_READINGS)
def test_a_request_that_can_be_read_in_two_ways_is_refused(writer: Server, what: str) -> None:
    """Nothing behind it is answered: what a proxy took for a body would be a request here."""
    statuses, got = said(writer.port, TWO_READINGS[what] + LIVE)
    assert statuses == [400] and b'"live"' not in got


def test_control_a_plain_one_is_not(writer: Server) -> None:
    assert said(writer.port, HEAD + LENGTH + b"\r\n" + BODY + LIVE)[0] == [200, 200]
    assert said(writer.port, CHUNKED + CHUNKS + LIVE)[0] == [200, 200]


@pytest.mark.parametrize(("line", "host", "status"), [
    (b"/health/live", b"localhost:80@evil.example", 421), (b"/health/live", b"localhost:http", 421),
    (b"/health/live", b"localhost, evil.example", 421), (b"/health/live", b"evil.example#localhost", 421),
    (b"/health/live", b"localhost:80\r\nHost: evil.example", 421), (b"/health/live", b"[::1]evil.example", 421),
    (b"/health/live", b"user@localhost", 421), (b"/health/live", b"localhost/evil.example", 421),
    (b"http://evil.example/health/live", b"127.0.0.1", 421), (b"http://127.0.0.1@evil.example/v1/models", b"a", 421),
    (b"http://127.0.0.1/health/live", b"127.0.0.1", 200), (b"http://127.0.0.1:80/health/live", b"evil.example", 200),
    (b"/health/live", b"[::1]:80", 200), (b"/health/live", b"localhost:", 200), (b"/health/live", b"LocalHost.", 200),
])  # fmt: skip
def test_the_host_is_the_one_the_request_is_for(writer: Server, line: bytes, host: bytes, status: int) -> None:
    assert said(writer.port, b"GET " + line + b" HTTP/1.1\r\nHost: " + host + b"\r\nConnection: close\r\n\r\n")[0] == [
        status
    ]


@pytest.mark.parametrize("upgrade", [b"websocket", b"h2c", b"TLS/1.0"])
def test_nothing_is_upgraded(writer: Server, upgrade: bytes) -> None:
    """The request is answered as it is, and the line closed: the parser has stopped there."""
    head = b"GET /health/live HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: upgrade\r\nUpgrade: " + upgrade
    began = time.monotonic()
    statuses, got = said(writer.port, head + b"\r\n\r\n" + LIVE)
    assert statuses == [200] and b"connection: close" in got.lower() and time.monotonic() - began < 9


PATHS = ["/v1/models", "/v1/models/x", "/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/v1/predict",
         "/health/live", "/health/ready", "/metrics", "/openapi.json", "/", "//v1/models", "/nothing"]  # fmt: skip


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "TRACE", "GET", "POST", "QUERY"])
def test_every_method_on_every_path(writer: Server, method: str, version: str) -> None:
    """An answer below 500, whole, with a length; none to HEAD but its head; a line of HTTP/1.0 is closed."""
    for path in PATHS:
        raw = f"{method} {path} HTTP/{version}\r\nHost: localhost\r\n\r\n".encode()
        statuses, got = said(writer.port, raw + (LIVE if version == "1.1" else b""))
        if method == "QUERY":  # a method the parser may not know yet
            assert 400 <= statuses[0] < 500
            continue
        assert len(statuses) == (2 if version == "1.1" else 1) and statuses[0] < 500, (path, statuses)
        head, _, rest = got.partition(b"\r\n\r\n")
        length = int(re.findall(rb"content-length: (\d+)", head.lower())[0])
        body = b"" if method == "HEAD" else rest[:length]
        assert len(body) == (0 if method == "HEAD" else length)
        assert rest[len(body) :].startswith(b"HTTP/1.1 200") if version == "1.1" else rest[len(body) :] == b""


# ---------------------------------------------------------------- pipelines


def test_a_pipeline_is_answered_in_order(writer: Server) -> None:
    """2,000 requests at once: every answer belongs to its request, and few of them are held at a time."""
    count = 2000
    bodies = [{"prompt": [5 + at % 200], "max_tokens": 1, "echo": True, "temperature": 0} if at % 100 == 0 else None
              for at in range(count)]  # fmt: skip
    raw = b"".join(request("/v1/completions", body) if body else request(f"/v1/models/{at}")
                   for at, body in enumerate(bodies))  # fmt: skip

    async def ask() -> list[Any]:
        wire = await Wire.open(writer.port)
        sending = asyncio.create_task(wire.send(raw))
        answers = [await wire.answer() for _ in range(count)]
        await sending
        wire.cut()
        return answers

    with watched(writer) as growth:
        answers = asyncio.run(asyncio.wait_for(ask(), 60))
    for at, (body, answer) in enumerate(zip(bodies, answers, strict=True)):
        if body is None:
            assert answer.status == 404 and f"'{at}'" in answer.json["error"]["message"], (at, answer)
        else:
            assert answer.status == 200 and answer.json["object"] == "text_completion"
    assert growth[0] < MOST_GROWTH, growth


@pytest.mark.parametrize("behind", [3, 300])  # read ahead, and more than is read ahead
def test_a_client_that_leaves_a_pipeline_has_cancelled_all_of_it(served: Callable[..., Server], behind: int) -> None:
    server = served("patient")
    before = server.metrics()["anyformer_requests_cancelled_total"]

    async def leave() -> None:
        wire = await Wire.open(server.port)
        long = request("/v1/completions", {"prompt": "The", "max_tokens": 4000, "temperature": 0})  # has no end
        await wire.send(long + request("/v1/models") * behind)
        while not server.metrics()["anyformer_active_rows"]:
            await asyncio.sleep(0.02)
        wire.cut(rudely=True)  # what the server has not read yet would keep the line open on our side
        await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(leave(), 30))
    until = time.monotonic() + 5
    while server.metrics()["anyformer_requests_in_flight"] and time.monotonic() < until:
        time.sleep(0.05)
    assert server.metrics()["anyformer_requests_cancelled_total"] == before + 1


# ---------------------------------------------------------------- descriptors


@contextlib.contextmanager
def half_open(port: int, count: int) -> Iterator[list[socket.socket]]:
    """Lines on which a request begins and does not go on."""
    lines = []
    try:
        for _ in range(count):
            line = socket.create_connection(("127.0.0.1", port), timeout=10)
            lines.append(line)
            with contextlib.suppress(OSError):
                line.sendall(b"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        yield lines
    finally:
        for line in lines:
            line.close()


def status_of(url: str) -> int:
    """What a newcomer is told; 0 where the line is closed on it."""
    try:
        return httpx.get(f"{url}/health/ready", timeout=10, trust_env=False).status_code
    except httpx.TransportError:
        return 0


def test_more_connections_than_descriptors(folders: Folders) -> None:
    """With 48 descriptors and 100 lines left half open: the rest is refused at once, and it passes."""
    with serving(folders["talker"], files=48) as server:
        chat = {"messages": [{"role": "user", "content": "The"}], "max_tokens": 2}
        assert server.post("/v1/chat/completions", chat).status_code == 200
        server.client.close()
        spent = cpu_seconds(server.pid)
        with half_open(server.port, 100) as lines:
            began = time.monotonic()
            told = [status_of(server.url) for _ in range(5)]
            assert set(told) <= {503, 0} and 503 in told and time.monotonic() - began < 5, told
            refused = sum(b" 503 " in peek(line) for line in lines)
            assert 70 <= refused <= 90, refused
            assert server.files() < 48
            time.sleep(max(0.0, 13 - (time.monotonic() - began)))
            assert status_of(server.url) == 200  # the half-open ones have had their time
        assert cpu_seconds(server.pid) - spent < 5  # nothing turned in circles
        server.client = httpx.Client(base_url=server.url, timeout=30.0, trust_env=False)
        assert server.post("/v1/chat/completions", chat).status_code == 200
        assert len(server.errors()) < 100_000 and "Traceback" not in server.errors()
        assert server.errors().count("connections are open") in (1, 2)


def peek(line: socket.socket) -> bytes:
    """What has come on a line, if anything."""
    line.settimeout(0.01)
    try:
        return line.recv(4096)
    except OSError:
        return b""


def cpu_seconds(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:
        words = file.read().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / 100


def test_a_system_without_descriptors_is_waited_for(folders: Folders) -> None:
    """Taken away from a running server, descriptors run out at the accept: one line in the log, and it recovers."""
    import resource

    with serving(folders["writer"]) as server:
        before = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (server.files(), before[1]))
        spent = cpu_seconds(server.pid)
        with half_open(server.port, 20):
            time.sleep(2.5)
        assert cpu_seconds(server.pid) - spent < 1
        assert len(server.errors()) < 20_000 and "Traceback" not in server.errors()
        assert "no connection can be taken" in server.errors()
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, before)
        assert server.get("/health/live").status_code == 200


def test_the_number_of_connections(folders: Folders) -> None:
    with serving(folders["writer"], "--connections", "2") as server, half_open(server.port, 2):
        assert status_of(server.url) in (503, 0)
    told = run("serve", folders["writer"], "--port", "0", "--connections", "900000")
    assert told.code == 2 and "ulimit -n" in told.errors[0]

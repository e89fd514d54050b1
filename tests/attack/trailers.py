"""Requests that grow where no body is: trailers, chunk extensions, tiny chunks, endless lines, pipelines.

    python -m tests.attack.trailers             a few minutes, 60 MB a try
    python -m tests.attack.trailers --small     the sizes of the tests

Each is sent over a plain socket to a real server, without a key. What counts is how far the server's memory grew.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.serving.folders import Folders
from tests.serving.server import KEY, Server

MOST_GROWTH = 50.0  # MB
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


@dataclass(frozen=True)
class Case:
    """Some bytes, then others again and again, then the end of the request."""

    name: str
    first: bytes
    again: bytes
    last: bytes = b"\r\n\r\n"


CASES = (
    Case("trailers", CHUNKED + b"2\r\n{}\r\n0\r\n", b"a:b\r\n" * 1000, b"\r\n"),
    Case("one endless trailer", CHUNKED + b"2\r\n{}\r\n0\r\nX: ", b"a" * 5000),
    Case("an endless name of a trailer", CHUNKED + b"2\r\n{}\r\n0\r\n", b"a" * 5000),
    Case("a chunk extension", CHUNKED + b"2;ext=", b"a" * 5000, b"\r\n{}\r\n0\r\n\r\n"),
    Case("many chunk extensions", CHUNKED, b"1;a=b\r\n \r\n" * 1000, b"0\r\n\r\n"),
    Case("tiny chunks", CHUNKED, b"1\r\n \r\n" * 1000, b"2\r\n{}\r\n0\r\n\r\n"),
    Case("zeros before a chunk's size", CHUNKED, b"0" * 5000, b"2\r\n{}\r\n0\r\n\r\n"),
    Case("a long request line", b"GET /", b"a" * 5000, b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"),
    Case("an endless header", HEAD + b"X: ", b"a" * 5000),
    Case("an endless name of a header", HEAD, b"a" * 5000),
    Case("many headers", HEAD, b"a:b\r\n" * 1000, b"\r\n"),
    Case("a folded header", HEAD + b"X: a\r\n", b" a\r\n" * 1000, b"\r\n"),
    Case("empty lines before a request", b"\r\n", b"\r\n" * 1000, b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"),
    Case("a body nobody waits for", HEAD + b"Content-Length: 9000000000\r\n\r\n", b"x" * 5000, b""),
    Case("a pipeline", b"", b"GET / HTTP/1.1\r\nHost:a\r\n\r\n" * 200, b""),
)


@dataclass(frozen=True)
class Found:
    """What came of one kind of request."""

    case: str
    tries: int
    bad: int  # tries that let memory grow, or left a server that answers no more
    growth: float  # MB, at worst

    def __str__(self) -> str:
        return f"{'NO ' if self.bad else 'ok '} {self.case:<32} {self.tries} tries, {self.growth:8.1f} MB at most"


def attack(server: Server, case: Case, size: int, *, at_once: int = 1, seconds: float = 25.0) -> Found:
    """Send a case up to `size` bytes over several connections at once; they end when the server hangs up."""
    with watched(server) as growth:
        lines = [threading.Thread(target=send, args=(server.port, case, size, seconds)) for _ in range(at_once)]
        for line in lines:
            line.start()
        for line in lines:
            line.join()
        alive = server.get("/health/live").status_code == 200
    return Found(case.name, at_once, at_once if growth[0] > MOST_GROWTH or not alive else 0, growth[0])


def send(port: int, case: Case, size: int, seconds: float) -> bytes:
    """The bytes of a case, until the server has enough; what it answered."""
    got, sent, until = b"", 0, time.monotonic() + seconds
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as line:
        with contextlib.suppress(OSError):
            line.sendall(case.first)
            block = case.again * max(1, 65_536 // len(case.again))
            while sent < size and time.monotonic() < until:
                line.sendall(block)
                sent += len(block)
            line.sendall(case.last)
            line.shutdown(socket.SHUT_WR)
        with contextlib.suppress(OSError):
            while time.monotonic() < until and (part := line.recv(65_536)):
                got = (got + part)[-65_536:]
    return got


@contextlib.contextmanager
def watched(server: Server) -> Iterator[list[float]]:
    """How far the server's memory grew meanwhile, at worst, in MB."""
    before, growth, over = server.memory(), [0.0], threading.Event()

    def look() -> None:
        while not over.wait(0.01):
            growth[0] = max(growth[0], server.memory() - before)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield growth
    finally:
        over.set()
        looking.join()
        growth[0] = max(growth[0], server.memory() - before)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="4 MB a try")
    parser.add_argument("--only", nargs="*", help="some of the cases")
    asked = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory() as place:
        folder = Folders(Path(place))["writer"]
        for key in (KEY, None):
            for case in CASES:
                if asked.only and case.name not in asked.only:
                    continue
                # A server for each: memory that one has made room for would hide the growth of the next.
                with Server(folder, env={} if key is None else {"ANYFORMER_API_KEY": key}) as server:
                    found.append(attack(server, case, (4 if asked.small else 60) * 2**20, at_once=4))
                print(found[-1], "with a key" if key else "without", flush=True)
    print(json.dumps([[one.case, one.tries, one.bad, round(one.growth, 1)] for one in found]))
    return 1 if any(one.bad for one in found) else 0


if __name__ == "__main__":
    sys.exit(main())

"""HTTP by hand over a plain socket: what is sent, and when the line is cut, is decided byte by byte."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any


def request(path: str, body: Any = None, *, method: str = "", host: str = "127.0.0.1", **headers: str) -> bytes:
    """The bytes of one request; a body that is not bytes is sent as JSON."""
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"{method or ('GET' if body is None else 'POST')} {path} HTTP/1.1", f"Host: {host}"]
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(data)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + data


@dataclass
class Answer:
    """What came back, and when (seconds after the request went out)."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    head_at: float = 0.0
    first_at: float = 0.0  # the first byte of the body
    over_at: float = 0.0

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """The objects of a stream of server-sent events, without the closing [DONE]."""
        parts = [part[6:] for part in self.body.decode().split("\n\n") if part.startswith("data: ")]
        return [json.loads(part) for part in parts if part != "[DONE]"]


class Wire:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.sent_at = 0.0

    @classmethod
    async def open(cls, port: int, *, receive_buffer: int | None = None) -> Wire:
        """Connect; a small receive buffer makes a client that reads slowly felt at once."""
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.setblocking(False)
        limit = 2**16 if receive_buffer is None else receive_buffer
        try:
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
            return cls(*await asyncio.open_connection(sock=sock, limit=limit))
        except BaseException:
            sock.close()
            raise

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()
        self.sent_at = time.monotonic()

    async def drip(self, data: bytes, every: float) -> None:
        """A byte at a time."""
        for at in range(len(data)):
            await self.send(data[at : at + 1])
            await asyncio.sleep(every)

    async def head(self) -> Answer:
        """Status and headers of the answer."""
        status, _, rest = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").partition("\r\n")
        pairs = [line.partition(":") for line in rest.split("\r\n") if line]
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        return Answer(int(status.split()[1]), headers, head_at=time.monotonic() - self.sent_at)

    async def pieces(self, answer: Answer) -> AsyncIterator[bytes]:
        """The body as it comes."""
        if "chunked" in answer.headers.get("transfer-encoding", ""):
            while size := int((await self.reader.readuntil(b"\r\n")).strip(), 16):
                yield (await self.reader.readexactly(size + 2))[:-2]
            await self.reader.readuntil(b"\r\n")
        elif length := int(answer.headers.get("content-length", 0)):
            yield await self.reader.readexactly(length)

    async def answer(self) -> Answer:
        """The whole answer."""
        answer = await self.head()
        async for piece in self.pieces(answer):
            answer.first_at = answer.first_at or time.monotonic() - self.sent_at
            answer.body += piece
        answer.over_at = time.monotonic() - self.sent_at
        return answer

    async def ask(self, path: str, body: Any = None, **headers: str) -> Answer:
        await self.send(request(path, body, **headers))
        return await self.answer()

    def cut(self, *, rudely: bool = False) -> None:
        """Hang up; rudely with a reset, as when a machine goes away."""
        sock = self.writer.get_extra_info("socket")
        if rudely and sock is not None:
            with contextlib.suppress(OSError):  # the server may have cut it first
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort() if rudely else self.writer.close()


async def ask(port: int, path: str, body: Any = None, **headers: str) -> Answer:
    """One request on a connection of its own."""
    wire = await Wire.open(port)
    try:
        return await wire.ask(path, body, **headers)
    finally:
        wire.cut()

"""Clients that send or read a byte at a time: they are dropped in the end, and nobody else waits for them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Sequence
from typing import Any

from tests.serving.figures import Figures, percentile
from tests.serving.server import Server
from tests.serving.wire import Answer, Wire, ask, request

SHORT = {"prompt": "The lovely story was", "max_tokens": 8, "temperature": 0}


async def send_slowly(server: Server, part: str, every: float, patience: float) -> tuple[float, int]:
    """Seconds until the server had enough of it, and what it answered (0 for a closed line)."""
    data = request("/v1/completions", {"model": server.line["model"], "stop": ["x" * 40] * 4} | SHORT, X_Long="a" * 200)
    head = data.index(b"\r\n\r\n") + 4
    wire, began, status = await Wire.open(server.port), time.monotonic(), 0
    ending = asyncio.create_task(wire.head())
    try:
        if part == "body":
            await wire.send(data[:head])
        rest = data[head:] if part == "body" else data[:head]
        for at in range(len(rest)):
            if ending.done() or time.monotonic() - began > patience:
                break
            await wire.send(rest[at : at + 1])
            await asyncio.wait([ending], timeout=every)
        status = (await asyncio.wait_for(ending, max(0.1, patience - (time.monotonic() - began)))).status
    except (asyncio.IncompleteReadError, ConnectionError):
        pass  # the line was closed
    except TimeoutError:
        return float("inf"), 0
    finally:
        ending.cancel()
        wire.cut(rudely=True)
    return time.monotonic() - began, status


async def read_slowly(server: Server, tokens: int, patience: float) -> tuple[float, bool]:
    """Ask for a long stream with small buffers and read nothing; seconds until the server hangs up; did it write?"""
    wire, began = await Wire.open(server.port, receive_buffer=2048), time.monotonic()
    body = {"model": server.line["model"], "prompt": "The", "max_tokens": tokens, "stream": True, "logprobs": 5,
            "temperature": 1.0}  # fmt: skip
    transport: Any = wire.writer.transport
    try:
        await wire.send(request("/v1/completions", body))
        transport.pause_reading()
        sock, wrote = wire.writer.get_extra_info("socket"), False
        with socket.socket(fileno=os.dup(sock.fileno())) as line:
            while time.monotonic() - began < patience:
                await asyncio.sleep(0.2)
                # What the kernel knows of the line: a state other than ESTABLISHED (1) means the server has left.
                if line.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 8)[0] != 1:
                    return time.monotonic() - began, wrote
                with contextlib.suppress(BlockingIOError):
                    wrote = wrote or b"data: " in line.recv(2048, socket.MSG_PEEK)
        return float("inf"), wrote
    finally:
        wire.cut(rudely=True)


async def others(server: Server, count: int, pause: float = 0.0) -> list[Answer]:
    """Ordinary requests, one after the other."""
    answers = []
    for _ in range(count):
        answers.append(await ask(server.port, "/v1/completions", {"model": server.line["model"]} | SHORT))
        await asyncio.sleep(pause)
    return answers


async def beside(server: Server, *, senders: int, readers: int, asked: int, patience: float, reading: bool,
                 tokens: int) -> dict[str, Any]:  # fmt: skip
    """What others felt before and while many were slow, and what became of the slow ones."""
    await others(server, 5)
    quiet = [answer.over_at for answer in await others(server, asked)]
    parts = ["head", "body"]
    slow = [asyncio.create_task(send_slowly(server, parts[at % 2], 0.5, patience)) for at in range(senders)]
    stalled = [asyncio.create_task(read_slowly(server, tokens, patience)) for _ in range(readers)]
    await asyncio.sleep(2.0)
    busy = await others(server, asked)
    ended = await asyncio.gather(*slow) if senders else []
    left: Sequence[tuple[float, bool]] = []
    if reading:
        left = await asyncio.gather(*stalled)
    for task in stalled:
        task.cancel()
    await asyncio.gather(*stalled, return_exceptions=True)
    return {"quiet": quiet, "busy": [answer.over_at for answer in busy], "refused": sum(a.status != 200 for a in busy),
            "senders": ended, "readers": left}  # fmt: skip


def prove(server: Server, *, senders: int, readers: int, asked: int, ratio: float, share: float = 0.99,
          reading: bool = True, patience: float = 45.0, tokens: int = 3_000) -> Figures:  # fmt: skip
    """`share` is the percentile that is compared: the 99th where enough is asked for it to mean something."""
    found = Figures("slow clients")
    seen = asyncio.run(beside(server, senders=senders, readers=readers, asked=asked, patience=patience,
                              reading=reading, tokens=tokens))  # fmt: skip
    before, after = percentile(seen["quiet"], share), percentile(seen["busy"], share)
    found.note(f"seconds of an ordinary request alone, p{share * 100:.0f}", before)
    found.note(f"the same beside {senders} slow senders and {readers} slow readers", after)
    found.at_most("their ratio", after / before, ratio)
    found.equal("ordinary requests not answered", seen["refused"], 0)
    found.at_most("seconds until a slow sender is dropped, the longest", max(s for s, _ in seen["senders"]), 12.0)
    found.equal("slow senders answered 5xx", sum(status >= 500 for _, status in seen["senders"]), 0)
    if reading:
        found.equal("stalled readers for whom nothing was written", sum(not wrote for _, wrote in seen["readers"]), 0)
        times = [seconds for seconds, _ in seen["readers"]]
        found.at_most("seconds until a stalled reader is dropped, the longest", max(times), 38.0)
        found.at_least("seconds until a stalled reader is dropped, the shortest", min(times), 25.0)
    return found

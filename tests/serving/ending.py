"""How a server ends when it is told to, and what it says while its engine hangs."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

from tests.serving.counting import until
from tests.serving.figures import Figures
from tests.serving.server import Server
from tests.serving.wire import Answer, Wire, ask, request


async def told_to_end(server: Server, clients: int, tokens: int) -> dict[str, Any]:
    """Streams and whole answers in flight, then SIGTERM, then newcomers."""
    body = {"model": server.line["model"], "prompt": "The", "max_tokens": tokens, "temperature": 1.0}

    async def one(at: int) -> Answer | str:
        wire = await Wire.open(server.port)
        try:
            return await wire.ask("/v1/completions", body | {"seed": at, "stream": at % 2 == 0})
        except (OSError, EOFError) as error:
            return type(error).__name__
        finally:
            wire.cut()

    asked = [asyncio.create_task(one(at)) for at in range(clients)]
    await until(server, lambda now: now.active + now.queued >= clients, 10)
    idle = await Wire.open(server.port)  # a line that nobody uses must not hold the server back
    began = time.monotonic()
    server.send(signal.SIGTERM)
    late: list[Answer | str] = []
    while not all(task.done() for task in asked) and len(late) < 20:
        await asyncio.sleep(0.05)
        try:
            late.append(await asyncio.wait_for(ask(server.port, "/v1/completions", body | {"max_tokens": 1}), 5))
        except (OSError, EOFError) as error:
            late.append(type(error).__name__)
    answers = await asyncio.gather(*asked)
    code = await asyncio.to_thread(server.wait, 60)
    took = time.monotonic() - began
    idle.cut()
    return {"answers": answers, "late": late, "code": code, "took": took}


def whole(answer: Answer | str) -> bool:
    """Served to its end: a stream closes with [DONE]."""
    if isinstance(answer, str) or answer.status != 200:
        return False
    text = answer.body.decode()
    return text.rstrip().endswith("[DONE]") and '"error"' not in text if text.startswith("data:") else True


def prove_end(folder: Path, *, clients: int, grace: float, tokens: int, rows: int = 16, again: bool = True) -> Figures:
    """SIGTERM with many in flight."""
    found = Figures("shutdown")
    with Server(folder, "--grace", str(grace), "--max-batch-size", str(rows)) as server:
        seen = asyncio.run(told_to_end(server, clients, tokens))
        left = [pid for pid in server.group() if pid != server.pid]
        statuses = [answer.status for answer in seen["answers"] if isinstance(answer, Answer)]
        found.equal("requests in flight", len(seen["answers"]), clients)
        found.at_least("of them served to their end", sum(map(whole, seen["answers"])), min(rows, clients))
        unserved = clients - sum(map(whole, seen["answers"]))
        found.equal("of the others not told 503", unserved - sum(status == 503 for status in statuses), 0)
        newcomers = [answer for answer in seen["late"] if isinstance(answer, Answer)]
        found.note("newcomers", len(seen["late"]))
        found.equal("newcomers neither told 503 nor turned away", sum(a.status != 503 for a in newcomers), 0)
        found.equal("exit code", seen["code"], 0)
        found.at_most("seconds until it was gone", seen["took"], grace + 2)
        found.equal("processes left behind", len(left), 0)
        found.equal("the port can be used again", float(bindable(server.port)), 1)
        found.equal("tracebacks on stderr", server.errors().count("Traceback"), 0)
    if again:
        with Server(folder, "--port", str(server.port)) as other:
            found.equal("a new server answers there", other.get("/health/ready").status_code, 200)
    return found


def bindable(port: int) -> bool:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def prove_late(folder: Path, *, grace: float) -> Figures:
    """A text that outlasts the grace is cut off, and the server still ends in time."""
    found = Figures("shutdown")

    async def cut_off(server: Server) -> tuple[Answer | str, float]:
        wire = await Wire.open(server.port)
        body = {"prompt": "The", "max_tokens": 3500, "temperature": 1.0, "stream": True}
        await wire.send(request("/v1/completions", body))
        answer = await wire.head()
        server.send(signal.SIGTERM)
        began = time.monotonic()
        try:
            async for piece in wire.pieces(answer):
                answer.body += piece
        except (OSError, EOFError):
            pass
        await asyncio.to_thread(server.wait, 60)
        wire.cut()
        return answer, time.monotonic() - began

    with Server(folder, "--grace", str(grace)) as server:
        answer, took = asyncio.run(cut_off(server))
        found.at_most("seconds until it was gone, a text outlasting the grace", took, grace + 2)
        found.equal("exit code then", server.process.returncode, 0)
        assert isinstance(answer, Answer)
        found.at_least("pieces the client had got", answer.body.count(b"data: "), 1)
    return found


def prove_hang(folder: Path, *, patience: float) -> Figures:
    """The engine stops in the middle of a turn: the server lives, says that it is not ready, and ends when told to."""
    found = Figures("hung engine")

    async def hung(server: Server) -> dict[str, float]:
        before = (await ask(server.port, "/health/ready")).status
        wire = await Wire.open(server.port)
        await wire.send(request("/v1/completions", {"prompt": "The", "max_tokens": 2000, "stream": True}))
        began, ready, live, slowest, again = time.monotonic(), float("inf"), 0, 0.0, 0.0
        while time.monotonic() - began < patience:
            answer = await ask(server.port, "/health/ready")
            living = await ask(server.port, "/health/live")
            live += living.status == 200
            slowest = max(slowest, living.over_at, answer.over_at)
            if answer.status == 503:
                ready, again = time.monotonic() - began, float("retry-after" in answer.headers)
                break
            await asyncio.sleep(0.25)
        living = await ask(server.port, "/health/live")
        wire.cut()
        return {"before": before, "ready": ready, "live": living.status, "slowest": slowest, "again": again}

    with Server(folder, "--grace", "2", fault="sleep@engine-step:20") as server:
        seen = asyncio.run(hung(server))
        found.equal("/health/ready before", seen["before"], 200)
        found.at_most("seconds until /health/ready says 503", seen["ready"], 35)
        found.at_least("seconds until /health/ready says 503, at the least", seen["ready"], 25)
        found.equal("/health/live then", seen["live"], 200)
        found.equal("Retry-After with it", seen["again"], 1)
        found.at_most("seconds of a health answer meanwhile, the longest", seen["slowest"], 1)
        began = time.monotonic()
        os.kill(server.pid, signal.SIGTERM)
        server.wait(60)
        found.at_most("seconds until it is gone when told to", time.monotonic() - began, 2 + 2 + 10)
    return found

"""More requests than the machine can serve: those that are let in are served, the others are told at once."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any

from tests.serving.counting import read_soon
from tests.serving.figures import Figures, percentile
from tests.serving.server import Server
from tests.serving.wire import Answer, Wire, ask

TOKENS = 64  # of a text in the mean; of one length they would begin and end together


@dataclass
class Seen:
    """What clients saw in one stretch of time."""

    seconds: float
    sent: int = 0
    tokens_per_second: float = 0.0  # written by the server meanwhile; whatever it takes on it serves to the end
    answers: list[tuple[float, Answer]] = field(default_factory=list)  # when it was sent, what came
    broken: list[str] = field(default_factory=list)

    def status(self, *codes: int) -> list[Answer]:
        return [answer for _, answer in self.answers if answer.status in codes]

    @property
    def first(self) -> list[float]:
        return [answer.first_at for answer in self.status(200)]


def body(server: Server, chance: random.Random) -> dict[str, Any]:
    prompt = [chance.randrange(5, 300) for _ in range(16)]
    return {"model": server.line["model"], "prompt": prompt, "max_tokens": chance.randint(TOKENS // 2, TOKENS * 3 // 2),
            "temperature": 1.0, "stream": True, "seed": chance.randrange(10_000)}  # fmt: skip


async def one(server: Server, seen: Seen, chance: random.Random, wire: Wire | None = None) -> Wire | None:
    """One request, on a line that is kept where the server keeps it."""
    seen.sent += 1
    began = time.monotonic()
    try:
        if wire is None or wire.reader.at_eof():  # a line that nobody used for long is closed
            wire = await Wire.open(server.port)
        answer = await asyncio.wait_for(wire.ask("/v1/completions", body(server, chance)), 60)
        seen.answers.append((began, answer))
        if answer.headers.get("connection", "").lower() == "close":
            wire.cut()
            return None
        return wire
    except (OSError, EOFError, TimeoutError) as error:
        seen.broken.append(type(error).__name__)
        if wire is not None:
            wire.cut(rudely=True)
        return None


async def watched(server: Server, seen: Seen, work: Awaitable[None]) -> Seen:
    """Count tokens by the server's own counter, from when things have got going until no more is sent."""

    async def count() -> None:
        await asyncio.sleep(seen.seconds / 4)
        before, began = await read_soon(server), time.monotonic()
        await asyncio.sleep(seen.seconds * 3 / 4)
        after = await read_soon(server)
        seen.tokens_per_second = (after.new_tokens - before.new_tokens) / (time.monotonic() - began)

    await asyncio.gather(work, count())
    return seen


async def closed(server: Server, clients: int, seconds: float, seed: int) -> Seen:
    """Each client sends its next request when the last was answered."""
    seen, began = Seen(seconds), time.monotonic()

    async def client(number: int) -> None:
        chance, wire = random.Random(seed * 1000 + number), None
        while time.monotonic() - began < seconds:
            wire = await one(server, seen, chance, wire)
            if wire is not None and seen.answers[-1][1].status != 200:  # its own: nothing came in between
                await asyncio.sleep(0.02)
        if wire is not None:
            wire.cut()

    async def all_clients() -> None:
        await asyncio.gather(*(client(number) for number in range(clients)))

    return await watched(server, seen, all_clients())


async def arriving(server: Server, rate: float, clients: int, seconds: float, seed: int) -> Seen:
    """Requests come at random moments, `rate` a second in the mean, from at most `clients` lines at a time."""
    seen, began, chance = Seen(seconds), time.monotonic(), random.Random(seed)
    free: list[Wire | None] = [None] * clients
    running: set[asyncio.Task[None]] = set()

    async def client(number: int) -> None:
        wire = await one(server, seen, random.Random(seed * 10_000 + number), free.pop())
        free.append(wire)

    async def come() -> None:
        due = began
        while (now := time.monotonic()) - began < seconds:
            if now < due:
                await asyncio.sleep(due - now)
            due += chance.expovariate(rate)
            if free:  # else all lines wait for an answer: this one does not come
                task = asyncio.create_task(client(seen.sent))
                running.add(task)
                task.add_done_callback(running.discard)
                await asyncio.sleep(0)
        await asyncio.gather(*running)

    await watched(server, seen, come())
    for wire in filter(None, free):
        wire.cut()
    return seen


async def measure(server: Server, rows: int, clients: int, seconds: float) -> dict[str, Any]:
    await closed(server, rows, min(2.0, seconds / 4), 1)  # warm
    full = await closed(server, rows, max(3.0, seconds / 4), 2)
    capacity = full.tokens_per_second / TOKENS  # requests a second with every row in use
    below = await arriving(server, 0.8 * capacity, clients, max(3.0, seconds / 2), 3)
    memory = server.memory()
    over = await arriving(server, 4 * capacity, clients, seconds, 4)
    grown = server.memory() - memory
    began, normal = time.monotonic(), math.inf
    while time.monotonic() - began < 15:
        answer = await ask(server.port, "/v1/completions", body(server, random.Random(5)) | {"max_tokens": 4})
        if answer.status == 200 and answer.first_at <= 0.5:
            normal = time.monotonic() - began
            break
        await asyncio.sleep(0.05)
    return {"full": full, "below": below, "over": over, "grown": grown, "normal": normal}


def prove(server: Server, *, rows: int, clients: int, seconds: float, goodput: float = 0.9, first: float = 2.0,
          refusal: float = 0.1, share: float = 0.99, least: float = 0.0) -> Figures:  # fmt: skip
    """Four times the capacity, beside 0.8 of it. First tokens within `least` seconds are all as good."""
    found = Figures("overload")
    seen = asyncio.run(measure(server, rows, clients, seconds))
    full, below, over = seen["full"], seen["below"], seen["over"]
    name = f"p{share * 100:.0f}"
    found.note("capacity C, tokens a second", full.tokens_per_second)
    found.note("requests sent at 4 C, in C", over.sent * TOKENS / over.seconds / full.tokens_per_second)
    found.at_least("goodput at 4 C, in C", over.tokens_per_second / full.tokens_per_second, goodput)
    refused = over.status(429, 503)
    found.at_least("requests refused at 4 C", len(refused), 1)
    found.equal("of them without Retry-After", sum("retry-after" not in answer.headers for answer in refused), 0)
    found.at_most(f"seconds to a refusal, {name}", percentile([answer.over_at for answer in refused], share), refusal)
    found.note(f"seconds to the first token at 0.8 C, {name}", percentile(below.first, share))
    found.note(f"seconds to the first token at 4 C, {name}", percentile(over.first, share))
    found.at_most("their ratio", percentile(over.first, share) / max(least, percentile(below.first, share)), first)
    others = [answer.status for _, answer in over.answers if answer.status not in (200, 429, 503)]
    found.equal("other answers and broken lines", len(others) + len(over.broken), 0)
    found.at_most("memory grown, MB", seen["grown"], 50)
    found.at_most("seconds until normal again", seen["normal"], 5)
    return found

"""Clients that hang up, in every phase of their request, beside others that must not notice."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from tests.serving.counting import Counts, read, read_soon, until
from tests.serving.figures import Figures, percentile
from tests.serving.server import Server
from tests.serving.wire import Wire, ask, request

PHASES = ("queued", "prefill", "decode", "whole", "stream")
ENDLESS = 3_000  # tokens: seconds of work, so that a row which was not freed is seen
NEIGHBOUR = {"prompt": "The lovely story was", "max_tokens": 40, "temperature": 0.8, "seed": 3, "logprobs": 0}


def body(server: Server, **settings: Any) -> dict[str, Any]:
    return {"model": server.line["model"], "prompt": "The", "max_tokens": ENDLESS, "temperature": 1.0} | settings


async def hang_up(server: Server, phase: str, chance: random.Random) -> None:
    """One request that is dropped in the given phase."""
    stream = phase in ("decode", "stream") or (phase != "whole" and chance.random() < 0.5)
    settings = {"stream": stream, "seed": chance.randrange(1000)}
    if phase == "prefill":
        settings["prompt"] = [chance.randrange(5, 300) for _ in range(900)]
    wire = await Wire.open(server.port)
    try:
        await wire.send(request("/v1/completions", body(server, **settings)))
        if phase == "prefill":
            await asyncio.sleep(chance.random() * 0.02)
        elif phase in ("queued", "whole"):
            await asyncio.sleep(0.02 + chance.random() * 0.08)
        else:
            answer = await asyncio.wait_for(wire.head(), 10)
            assert answer.status == 200, answer
            pieces, wanted = 0, 1 if phase == "decode" else chance.randint(2, 20)
            async for _ in wire.pieces(answer):
                pieces += 1
                if pieces >= wanted:
                    break
    finally:
        wire.cut(rudely=chance.random() < 0.5)


async def neighbours(server: Server, stop: asyncio.Event, expected: Any, wrong: list[Any]) -> int:
    """One that asks the same again and again, and must always get the same."""
    asked = 0
    while not stop.is_set():
        answer = await ask(server.port, "/v1/completions", body(server, **NEIGHBOUR))
        asked += 1
        if answer.status != 200 or answer.json["choices"][0]["logprobs"]["tokens"] != expected:
            wrong.append((answer.status, answer.body[:300]))
    return asked


async def fill(server: Server, rows: int) -> list[Wire]:
    """Texts without an end in every row but one that the neighbour has."""
    wires = []
    for _ in range(rows):
        wire = await Wire.open(server.port)
        await wire.send(request("/v1/completions", body(server, stream=True)))
        wires.append(wire)
    await until(server, lambda now: now.active >= rows)
    return wires


async def drop(server: Server, total: int, together: int, seed: int) -> tuple[list[float], int, list[Any]]:
    """Seconds until all rows were free again after each group of drops; the neighbour's answers and what was wrong."""
    chance = random.Random(seed)
    expected = (await ask(server.port, "/v1/completions", body(server, **NEIGHBOUR))).json
    stop, wrong = asyncio.Event(), list[Any]()
    beside = asyncio.create_task(neighbours(server, stop, expected["choices"][0]["logprobs"]["tokens"], wrong))
    waits = []
    rows = int((await read_soon(server)).rows)
    for at in range(0, total, together):
        phase = PHASES[at // together % len(PHASES)]
        size = min(together, total - at)
        blockers = await fill(server, rows) if phase == "queued" else []
        await asyncio.gather(*(hang_up(server, phase, chance) for _ in range(size)))
        if blockers:  # what was dropped while it waited leaves the queue; the neighbour may stand in it
            waits.append(await until(server, lambda now: now.queued <= 1))
            for wire in blockers:
                wire.cut(rudely=chance.random() < 0.5)
        waits.append(await until(server, lambda now: now.active + now.queued <= 1))
    stop.set()
    asked = await beside
    return waits, asked, wrong


def prove(server: Server, *, total: int, together: int = 10, seed: int = 0, longest: float = 1.0) -> Figures:
    """`total` requests dropped over five phases; `longest` is the bar in seconds of the slowest group."""
    found = Figures("disconnects")
    waits, asked, wrong = asyncio.run(drop(server, total, together, seed))
    asyncio.run(until(server, lambda now: now.idle))
    now: Counts = read(server)
    found.at_least("requests cancelled by their client", now.cancelled, total * 0.9)
    found.at_most("seconds until a dropped request's row is free, the longest", max(waits), longest)
    found.at_most("seconds until a dropped request's row is free, median", percentile(waits, 0.5), 0.2)
    found.at_least("answers of the neighbour meanwhile", asked, 3)
    found.equal("of them with other tokens than alone", len(wrong), 0)
    found.equal("accepted - done - cancelled - failed - deadline", now.accepted - now.over, 0)
    found.equal("rows not free at the end", now.rows - now.free, 0)
    found.equal("requests failed", now.failed, 0)
    return found

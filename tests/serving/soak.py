"""Mixed traffic for a while: what a server holds must not grow."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from typing import Any

from tests.serving.counting import read_soon, until
from tests.serving.figures import Figures, slope
from tests.serving.server import Server
from tests.serving.wire import Wire, ask, request

# Threads of asyncio's own pool start when they are first needed, also after the warm-up; a leak goes on for ever.
POOL = min(32, (os.cpu_count() or 1) + 4)


async def ordinary(server: Server, chance: random.Random, counted: dict[str, int]) -> None:
    """One request of any kind, wrong ones and dropped ones too."""
    kind = chance.choice(["complete", "stream", "chat", "embed", "wrong", "broken", "drop", "metrics", "long"])
    counted[kind] = counted.get(kind, 0) + 1
    prompt = [chance.randrange(5, 300) for _ in range(chance.randint(1, 40))]
    body: dict[str, Any] = {"model": server.line["model"], "prompt": prompt, "max_tokens": chance.randint(1, 24),
                            "temperature": 1.0}  # fmt: skip
    path, wanted = "/v1/completions", 200
    if kind == "stream":
        body |= {"stream": True, "logprobs": 2}
    elif kind == "chat":
        path, body = "/v1/chat/completions", {"messages": [{"role": "user", "content": "The film"}], "max_tokens": 8}
    elif kind == "embed":
        path, body = "/v1/embeddings", {"input": ["The film", "The plot"]}
    elif kind == "wrong":
        body, wanted = body | {"temperature": chance.choice([-1, 9, "hot"])}, 400
    elif kind == "long":
        body, wanted = body | {"prompt": [7] * 9000}, 400
    if kind == "metrics":
        answer = await ask(server.port, "/metrics")
    elif kind == "broken":
        answer, wanted = await ask(server.port, path, json.dumps(body).encode()[:-9]), 400
    elif kind == "drop":
        wire = await Wire.open(server.port)
        await wire.send(request(path, body | {"stream": True, "max_tokens": 500}))
        await asyncio.sleep(chance.random() * 0.05)
        wire.cut(rudely=chance.random() < 0.5)
        return
    else:
        answer = await ask(server.port, path, body)
    if answer.status != wanted:
        counted["unexpected"] = counted.get("unexpected", 0) + 1
        counted[f"{kind} {answer.status}"] = counted.get(f"{kind} {answer.status}", 0) + 1


async def run(server: Server, seconds: float, clients: int, seed: int) -> dict[str, Any]:
    counted: dict[str, int] = {"unexpected": 0}
    began = time.monotonic()

    async def client(number: int, until_when: float) -> None:
        chance = random.Random(seed * 100 + number)
        while time.monotonic() < until_when:
            await ordinary(server, chance, counted)

    warm = max(3.0, seconds * 0.25)  # allocators and caches reach their size
    await asyncio.gather(*(client(number, began + warm) for number in range(clients)))
    await until(server, lambda now: now.idle)
    start = {"files": server.files(), "threads": server.threads(), "memory": server.memory()}
    samples: list[tuple[float, float]] = []
    ending = time.monotonic() + seconds - warm

    async def watch() -> None:
        while time.monotonic() < ending:
            samples.append((time.monotonic(), server.memory()))
            await asyncio.sleep(0.5)

    await asyncio.gather(watch(), *(client(100 + number, ending) for number in range(clients)))
    free = await until(server, lambda now: now.idle)
    await asyncio.sleep(0.5)
    end = {"files": server.files(), "threads": server.threads(), "memory": server.memory()}
    return {"start": start, "end": end, "samples": samples, "counted": counted, "free": free,
            "counts": await read_soon(server)}  # fmt: skip


def prove(server: Server, *, seconds: float, clients: int = 8, seed: int = 0, growth: float = 1.0) -> Figures:
    """`growth`: MB a minute that memory may seem to grow by; a short run sees allocators still settling."""
    found = Figures("soak")
    seen = asyncio.run(run(server, seconds, clients, seed))
    counted, now = seen["counted"], seen["counts"]
    asked = sum(number for kind, number in counted.items() if " " not in kind and kind != "unexpected")
    found.note("seconds", seconds)
    found.at_least("requests", asked, seconds)
    found.equal("answers with another status than expected", counted["unexpected"], 0)
    found.at_most("file descriptors more than after the warm-up", seen["end"]["files"] - seen["start"]["files"], 2)
    found.at_most("threads more than after the warm-up", seen["end"]["threads"] - seen["start"]["threads"], POOL)
    found.equal("rows not free at the end", now.rows - now.free, 0)
    found.equal("accepted - over", now.accepted - now.over, 0)
    found.at_most("memory, MB a minute", 60 * slope([m for _, m in seen["samples"]], [t for t, _ in seen["samples"]]),
                  growth)  # fmt: skip
    found.at_most("memory more than after the warm-up, MB", seen["end"]["memory"] - seen["start"]["memory"], 30)
    if counted["unexpected"]:
        print(counted)
    return found

"""The same request alone and among others: no neighbour may change a token."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

from tests.serving.figures import Figures
from tests.serving.server import Server
from tests.serving.wire import Answer, ask


def requests(server: Server, count: int, seed: int = 0, *, longest: int = 90, tokens: int = 48) -> list[dict[str, Any]]:
    """Greedy and seeded ones of many lengths and settings."""
    chance, found = random.Random(seed), []
    for at in range(count):
        prompt = [chance.randrange(5, 300) for _ in range(chance.randint(1, longest))]
        body: dict[str, Any] = {"model": server.line["model"], "logprobs": 1, "prompt": prompt,
                                "max_tokens": chance.randint(4, tokens)}  # fmt: skip
        if at % 2:
            body |= {"temperature": chance.choice([0.5, 1.0, 1.5]), "seed": chance.randrange(10**6),
                     "top_p": chance.choice([1.0, 0.9]), "top_k": chance.choice([0, 40])}  # fmt: skip
        else:
            body |= {"temperature": 0}
        found.append(body)
    return found


async def answered(server: Server, bodies: list[dict[str, Any]], together: int) -> list[dict[str, Any]]:
    """Their choices, so many at a time."""
    answers = await every(server, bodies, together)
    assert all(answer.status == 200 for answer in answers), [a.body for a in answers if a.status != 200][:1]
    return [answer.json["choices"][0] for answer in answers]


def words(choice: dict[str, Any]) -> list[str]:
    return choice["logprobs"]["tokens"]


def prove(server: Server, *, count: int, together: int = 32, bits: bool = False, seed: int = 0, longest: int = 90,
          most: int = 48) -> Figures:  # fmt: skip
    """`count` requests, each alone and then among 31 others; `bits` also compares every log-probability exactly."""
    found = Figures("company" if not bits else "company, strict")
    bodies = requests(server, count, seed, longest=longest, tokens=most)
    alone = asyncio.run(answered(server, bodies, 1))
    among = asyncio.run(answered(server, bodies, together))
    pairs = list(zip(alone, among, strict=True))
    found.at_least("requests, alone and among others", len(pairs), count)
    found.at_least("tokens of them", sum(len(words(one)) for one in alone), count * 4)
    found.equal("requests with other tokens", sum(words(a) != words(b) for a, b in pairs), 0)
    differing = sum(a["logprobs"]["token_logprobs"] != b["logprobs"]["token_logprobs"] for a, b in pairs)
    if bits:
        found.equal("requests with another log-probability, bit for bit", differing, 0)
    else:
        found.note("requests with another log-probability, bit for bit", differing)
    return found


def prove_fault(folder: Path, *, count: int, rows: int = 16, tokens: int = 48) -> Figures:
    """Memory runs out once in the middle of a step of all rows, and once while a prompt is read: that one is hit."""
    found = Figures("isolation")
    faults = f"oom@decode:{count},oom@prefill:3"  # prompts that wait together are read in few passes
    with Server(folder, "--max-batch-size", str(rows), fault=faults) as server:
        bodies = requests(server, count, 7, tokens=tokens)
        answers = asyncio.run(every(server, bodies, rows))
        again = asyncio.run(answered(server, bodies, rows))  # both faults lie behind
        hit = [answer for answer in answers if answer.status != 200]
        others = [(a.json["choices"][0], b) for a, b in zip(answers, again, strict=True) if a.status == 200]
        found.at_most("requests hit by two faults", len(hit), 1)  # none, where it hit several prompts read together
        found.equal("of them not told 503", sum(answer.status != 503 for answer in hit), 0)
        found.equal("others served", len(others), count - len(hit))
        found.equal("others with other tokens than without a fault", sum(words(a) != words(b) for a, b in others), 0)
        found.equal("ready afterwards", server.get("/health/ready").status_code, 200)
        happened = sum(server.errors().count(word) for word in ("a batch of", "a sequence failed"))
        found.equal("faults that did happen, of 2", happened, 2)
    return found


async def every(server: Server, bodies: list[dict[str, Any]], together: int) -> list[Answer]:
    """All answers, whatever they are."""
    gate = asyncio.Semaphore(together)

    async def one(body: dict[str, Any]) -> Answer:
        async with gate:
            return await ask(server.port, "/v1/completions", body)

    return list(await asyncio.gather(*map(one, bodies)))

"""What HTTP costs: tokens a second of 64 streaming clients against the same texts from the engine directly.

    python benchmarks/serve_speed.py                  GPT-2 124M, 64 clients in a process of their own
    python benchmarks/serve_speed.py --preset gpt2-tiny --new 128

Weights are random: speed does not depend on them. Both sides write the same texts with the same number of rows, in
turns, three times; the table says tokens a second of each and their ratio.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import dataclasses
import datetime
import json
import os
import re
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # some virtual machines report AMX and do not allow it

import torch

import anyformer
from anyformer.checkpoints.folder import Opened
from anyformer.data.tokenizers.tokenizer import train_tokenizer
from anyformer.engine.engine import Engine
from anyformer.engine.sequence import Event, Failed, Finished, Sequence
from anyformer.generation.cache.open_store import open_serving_store
from anyformer.generation.config import Generation
from anyformer.inference.opening import load
from anyformer.inference.predictor import Predictor
from tests.serving.server import Server
from tests.serving.wire import request

ROOT = Path(__file__).parents[1]


def folder_of(name: str, place: Path) -> Path:
    """A model of the preset's sizes with a byte-level tokenizer of as many tokens as Python's own library gives it."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    tokenizer = train_tokenizer([file.read_text(encoding="utf-8", errors="replace") for file in files], "bpe", 8192)
    spec = anyformer.preset(name)
    if name.endswith("-tiny"):
        spec = dataclasses.replace(spec, embed=dataclasses.replace(spec.embed, vocab=tokenizer.size))
    return Predictor(Opened(spec, spec.build(seed=0).eval()), tokenizer=tokenizer).save(place / name)


def direct(folder: Path, prompts: list[list[int]], new: int, rows: int, context: int) -> float:
    """Tokens a second of the engine called in this process."""
    predictor = load(folder)
    engine = Engine(open_serving_store(predictor.model, capacity=rows, limit=context))
    engine.start()
    over = threading.Semaphore(0)

    def tell(event: Event) -> None:
        if isinstance(event, Finished | Failed):
            over.release()

    def write() -> float:
        began = time.perf_counter()
        for number, prompt in enumerate(prompts):
            settings = Generation(max_new_tokens=new, do_sample=True, temperature=1.0, seed=number)
            engine.submit(Sequence(prompt, settings, tell, client=str(number)))
        for _ in prompts:
            over.acquire()
        return len(prompts) * new / (time.perf_counter() - began)

    write()  # buffers grow once
    found = write()
    engine.stop()
    return found


class Reader(asyncio.Protocol):
    """One client: sends its request and keeps what comes. It does as little as it can, as it has no core of its own."""

    def __init__(self, request: bytes) -> None:
        self.request, self.got = request, bytearray()
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask."""
        transport.write(self.request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        """Until the stream says that it is over."""
        self.got += data
        if b"[DONE]" in data and not self.over.done():
            self.over.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        """It must not be."""
        if not self.over.done():
            self.over.set_exception(error or ConnectionError(bytes(self.got[:200])))


async def streamed(port: int, prompts: list[list[int]], new: int) -> float:
    """Tokens a second of as many clients as prompts, each reading its own stream."""
    loop = asyncio.get_running_loop()

    async def one(number: int) -> int:
        body = {"prompt": prompts[number], "max_tokens": new, "temperature": 1.0, "seed": number, "stream": True,
                "stream_options": {"include_usage": True}, "user": str(number)}  # fmt: skip
        line, reader = await loop.create_connection(lambda: Reader(request("/v1/completions", body)), "127.0.0.1", port)
        await asyncio.wait_for(reader.over, 600)
        line.close()
        (told,) = re.findall(rb'"completion_tokens":(\d+)', reader.got)
        return int(told)

    began = time.perf_counter()
    told = sum(await asyncio.gather(*(one(number) for number in range(len(prompts)))))
    return told / (time.perf_counter() - began)


def by_http(folder: Path, prompts: list[list[int]], new: int, rows: int, context: int) -> float:
    """Tokens a second through a server process, asked from a third process."""
    threads = str(torch.get_num_threads())
    with Server(
        folder, "--max-batch-size", str(rows), "--context", str(context), env={"OMP_NUM_THREADS": threads}
    ) as server:
        ask = json.dumps({"port": server.port, "prompts": prompts, "new": new})
        command = [sys.executable, __file__, "--ask", "-"]
        rounds = [subprocess.run(command, input=ask, capture_output=True, text=True, check=True) for _ in range(2)]
        return float(rounds[-1].stdout)


def main() -> None:
    """Both sides in turns."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--preset", default="gpt2")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--new", type=int, default=32)
    parser.add_argument("--prompt", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ask", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.ask:
        asked = json.loads(sys.stdin.read())
        sys.stdout.write(str(asyncio.run(streamed(asked["port"], asked["prompts"], asked["new"]))))
        return
    chance = torch.Generator().manual_seed(0)
    prompts = torch.randint(300, 8000, (given.clients, given.prompt), generator=chance).tolist()
    rows = []
    with tempfile.TemporaryDirectory() as place:
        folder = folder_of(given.preset, Path(place))
        context = given.prompt + given.new
        for number in range(given.rounds):
            ours = direct(folder, prompts, given.new, given.clients, context)
            theirs = by_http(folder, prompts, given.new, given.clients, context)
            rows.append({"preset": given.preset, "clients": given.clients, "prompt": given.prompt, "new": given.new,
                         "round": number, "engine_tokens_s": round(ours, 1), "http_tokens_s": round(theirs, 1),
                         "ratio": round(theirs / ours, 3)})  # fmt: skip
            print(rows[-1], flush=True)
    print(f"ratio {statistics.median(row['ratio'] for row in rows):.3f}")
    name = f"torch{torch.__version__.split('+')[0]}-cpu-{torch.get_num_threads()}threads-{datetime.date.today()}"
    path = ROOT / "benchmarks" / "results" / f"{name}-serve-{given.preset}.csv"
    with path.open("w", newline="", encoding="utf-8") as handle:
        writer = csv.DictWriter(handle, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()

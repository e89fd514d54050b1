"""What proposed tokens save: tokens a pass and seconds, with texts that are checked to be the same.

    python benchmarks/speculative.py [--steps 500] [--new 300] [--rounds 5] [--csv benchmarks/results/NAME.csv]

What a pass over several tokens costs against a pass over one, for a GPT-2 of 124M with random weights: the limit of
any speed-up; and that model going on until it repeats itself, where all proposals are right. Then a small model and a
smaller draft, trained here for a minute or two on classes of made-up attributes, which write such a class: copying with
new names in it, greedy and drawn. Last what a JSON guide costs a token, with a vocabulary of 50,000. Seconds are those
of the processor, on one thread, the least of several rounds that take turns.
"""

from __future__ import annotations

import argparse
import csv
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

import anyformer
from anyformer.data.tokenizers.tokenizer import Tokenizer, train_tokenizer
from anyformer.generation import Generation, generate
from anyformer.generation.grammar import grammar_vocabulary, json_guide


def record(draws: random.Random, attributes: int) -> str:
    """A class of the kind that people write by copying."""
    letters = "abcdefghilmnoprstu"
    names = ["".join(draws.choices(letters, k=draws.randint(4, 9))) for _ in range(attributes)]
    parts = [
        f"    def get_{name}(self):\n        return self._{name}\n\n"
        f"    def set_{name}(self, value):\n        self._{name} = value\n\n"
        for name in names
    ]
    return f"class {names[0].title()}:\n    names = {names}\n\n" + "".join(parts)


def trained(tokenizer: Tokenizer, depth: int, width: int, steps: int, seed: int) -> Any:
    """A small decoder that has learned to write such classes."""
    spec = anyformer.preset("decoder-mini")
    spec = spec.replace(
        embed=spec.embed.replace(vocab=tokenizer.size), stack=spec.stack.replace(depth=depth, width=width)
    )
    model, draws = spec.build(seed=seed), random.Random(seed)
    optimiser = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.01)
    plan = torch.optim.lr_scheduler.OneCycleLR(optimiser, 4e-3, total_steps=steps)
    stock = [tokenizer.encode(record(draws, draws.randint(4, 8))) for _ in range(400)]
    for _ in range(steps):
        rows = []
        for text in draws.choices(stock, k=8):
            start = draws.randrange(max(1, len(text) - 257))
            rows.append((text[start : start + 257] + [0] * 257)[:257])
        ids = torch.tensor(rows)
        loss = torch.nn.functional.cross_entropy(model(ids[:, :-1]).logits.flatten(0, 1), ids[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        plan.step()
    print(f"{depth} layers of {width}, {steps} steps, loss {loss.item():.3f}", flush=True)
    return model.eval()


def least(ways: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Seconds of each way, the least of several rounds in turn."""
    best: dict[str, float] = {}
    for _ in range(rounds):
        for name, way in ways.items():
            start = time.process_time()
            way()
            took = time.process_time() - start
            best[name] = min(best.get(name, took), took)
    return best


@torch.inference_mode()
def passes(rounds: int) -> list[list[Any]]:
    """One pass of GPT-2 124M over several tokens behind a text of 256."""
    model = anyformer.preset("gpt2").build(seed=0).eval()
    state = model.state(1, 512, rolling=False)
    model(torch.randint(50257, (1, 256)), state=state)

    def read(count: int) -> None:
        model(torch.randint(50257, (1, count)), state=state)
        state.truncate(256)

    best = least({str(count): lambda count=count: read(count) for count in (1, 2, 3, 5, 9, 16)}, rounds)
    return [
        ["gpt2 124M, one pass", f"{count} tokens", "", f"{best[count] * 1000:.1f} ms", f"{best[count] / best['1']:.2f}"]
        for count in best
    ]


def compared(
    name: str, model: Any, prompt: list[int], settings: dict[str, Any], ways: dict[str, dict[str, Any]], rounds: int
) -> list[list[Any]]:
    """Tokens a pass and seconds of some ways to write one text; the first way is the one without proposals."""
    results: dict[str, Any] = {}
    ids = torch.tensor([prompt])

    def run(way: str) -> None:
        more = dict(ways[way])
        draft = more.pop("draft", None)
        results[way] = generate(model, ids, settings=Generation(**settings, **more), draft=draft)

    best = least({way: lambda way=way: run(way) for way in ways}, rounds)
    plain, *_ = results
    rows: list[list[Any]] = []
    for way, result in results.items():
        if not torch.equal(result.ids, results[plain].ids):
            raise SystemExit(f"{name}, {way}: the text is another one")
        count = int(result.lengths.sum())
        each = 1.0 if result.passes is None else count / int(result.passes.sum())
        speed = f"{best[plain] / best[way]:.2f}"
        rows.append([f"{name}, {way}", f"{count} tokens", f"{each:.2f}", f"{best[way]:.3f} s", speed])
    return rows


def large(rounds: int) -> list[list[Any]]:
    """GPT-2 124M with random weights, which soon repeats itself."""
    model = anyformer.preset("gpt2").build(seed=0).eval()
    prompt = torch.randint(50257, (64,), generator=torch.Generator().manual_seed(0)).tolist()
    ways = {"plain": {}, **{f"lookup {n}": {"prompt_lookup_num_tokens": n} for n in (2, 8, 15)}}
    return compared("gpt2 124M in a loop", model, prompt, {"max_new_tokens": 96}, ways, max(2, rounds // 2))


def small(steps: int, new: int, rounds: int) -> list[list[Any]]:
    """A trained model and its draft write a class."""
    draws = random.Random(1)
    tokenizer = train_tokenizer([record(draws, 8) for _ in range(200)], "bpe", 400)
    model, draft = trained(tokenizer, 4, 128, steps, 0), trained(tokenizer, 1, 64, steps, 1)
    text = record(random.Random(7), 12)
    prompt = tokenizer.encode(text)[:160]
    rows: list[list[Any]] = []
    for kind, how in {"greedy": {}, "drawn": {"do_sample": True, "temperature": 0.7, "seed": 1}}.items():
        ways = {"plain": {}, **{f"lookup {n}": {"prompt_lookup_num_tokens": n} for n in (2, 4, 8, 15)},
                **{f"draft {n}": {"draft": draft, "num_assistant_tokens": n} for n in (3, 5)}}  # fmt: skip
        rows += compared(f"a class, {kind}", model, prompt, {"max_new_tokens": new, **how}, ways, rounds)
    written = generate(model, torch.tensor([prompt]), settings=Generation(max_new_tokens=80))
    print(tokenizer.decode(prompt[-20:]) + " ... " + repr(tokenizer.decode(next(iter(written.rows())))), flush=True)
    return rows


def masks() -> list[list[Any]]:
    """What a guide costs a token, with a vocabulary of 50,000 made-up words."""
    draws = random.Random(0)
    words = ["".join(draws.choices("etaoinshrdlucmfw", k=draws.randint(3, 9))) for _ in range(60_000)]
    texts = [" ".join(draws.choices(words, k=1000)) for _ in range(700)]
    start = time.process_time()
    tokenizer = train_tokenizer(texts, "bpe", 50_257)
    made = time.process_time()
    grammar_vocabulary(tokenizer)
    opened = time.process_time() - made
    schema = {
        "type": "object",
        "required": ["name", "age", "tags"],
        "additionalProperties": False,
        "properties": {
            "name": {"type": "string"},
            "age": {"type": "integer"},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
    }
    times: list[float] = []
    for seed in range(20):
        guide, noise = json_guide(tokenizer, schema, []), torch.Generator().manual_seed(seed)
        for _ in range(60):
            start = time.process_time()
            mask = guide.mask()
            took = time.process_time() - start
            token = int((torch.rand(len(mask), generator=noise) * mask).argmax())
            start = time.process_time()
            guide.accept(token)
            times.append(1e6 * (took + time.process_time() - start))
            if guide.over:
                break
    spread = f"{statistics.median(times):.0f} us, 99% below {sorted(times)[int(0.99 * len(times))]:.0f}"
    return [
        ["JSON guide", f"{tokenizer.size} words, once a tokenizer", "", f"{opened:.2f} s", ""],
        ["JSON guide", f"{tokenizer.size} words, each token", "", spread, ""],
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--new", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--csv")
    options = parser.parse_args()
    torch.set_num_threads(1)
    table = [["what", "of", "tokens a pass", "time", "ratio"]]
    parts: list[Callable[[], list[list[Any]]]] = [
        lambda: passes(options.rounds), lambda: large(options.rounds),
        lambda: small(options.steps, options.new, options.rounds), masks,
    ]  # fmt: skip
    for part in parts:
        for row in part():
            print("  ".join(f"{cell:<28}" for cell in row), flush=True)
            table.append(row)
    if options.csv:
        with open(options.csv, "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([*table, ["torch", torch.__version__, "cpu", "1 thread", ""]])


if __name__ == "__main__":
    main()

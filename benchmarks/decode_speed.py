"""Tokens a second on a CPU: transformers' `generate` and ours, eager, compiled, drafted and in 8 bits, for GPT-2 124M.

    python benchmarks/decode_speed.py [--rounds 5] [--new 64] [--batches 1 8] [--threads 2] [--csv FILE]
    python benchmarks/decode_speed.py --folder FOLDER [--prompt TEXT]

The weights are random and the same for all. Those of the blocks are three times as large as a fresh model's, so that
texts go on and change (a fresh model soon repeats a few tokens, which any draft guesses). Every one writes `--new`
tokens greedily behind a prompt of 64. Rounds go through all of them in turn, so that a neighbour on the machine slows
each alike; a round in which other processes or the host took more than a tenth of a core from any of them is not
counted and is tried again, twice as many at most; ratios are of medians. The first call of each, which compiles, is
timed apart. `drafted` is float32, its
tokens guessed by the same weights in 8 bits and checked several at a time: the text must be that of float32.

`--folder` asks a trained model what random weights cannot tell: how many of the tokens its 8-bit copy guesses hold,
and how far 8 bits move its own loss on the texts it writes.
"""

from __future__ import annotations

import argparse
import copy
import csv
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # virtual machines may report AMX and not allow it
os.environ["HF_HUB_OFFLINE"] = "1"

import torch

import anyformer
from anyformer.generation import Generated, Generation, generate

PROMPT = 64
LIVELY = 3.0  # how much larger than a fresh model's the weights of the blocks are
QUIET = 0.1  # of a core: what others may take from a round that counts
Write = Callable[[torch.Tensor, int], tuple[torch.Tensor, float]]  # the tokens, and how many came of a pass


def theirs() -> tuple[Write, torch.nn.Module]:
    """transformers with its defaults (a growing cache, nothing compiled), and the same weights as a model of ours."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config()).eval()
    with torch.no_grad():
        for weight in model.transformer.h.parameters():
            if weight.dim() == 2:
                weight.mul_(LIVELY)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        ours = anyformer.load(folder, device="cpu").model.eval()

    @torch.no_grad()
    def write(ids: torch.Tensor, new: int) -> tuple[torch.Tensor, float]:
        mask = torch.ones_like(ids)
        made = model.generate(
            ids, attention_mask=mask, max_new_tokens=new, min_new_tokens=new, do_sample=False, pad_token_id=0
        )
        return made[:, ids.shape[1] :], 1.0

    return write, ours


def ours(model: object, draft: object = None) -> Write:
    def write(ids: torch.Tensor, new: int) -> tuple[torch.Tensor, float]:
        made = generate(model, ids, settings=Generation(max_new_tokens=new), draft=draft)
        return made.new, a_pass(made)

    return write


def a_pass(made: Generated) -> float:
    """Tokens that came of each pass of the model."""
    return 1.0 if made.passes is None else float(made.lengths.sum() / made.passes.sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--only", nargs="+", help="these beside transformers")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--folder", type=Path, help="a trained model to ask how well its 8-bit copy guesses")
    parser.add_argument("--prompt", default="Once upon a time")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    if asked.folder is not None:
        ask_trained(asked.folder, asked.prompt, asked.new)
        return
    write, plain = theirs()
    small = anyformer.quantise(copy.deepcopy(plain))
    writers: dict[str, Write] = {
        "transformers": write, "eager": ours(plain), "compiled": ours(anyformer.compiled(plain)),
        "drafted": ours(plain, "int8"), "int8 eager": ours(small), "int8": ours(anyformer.compiled(small)),
    }  # fmt: skip
    names = [name for name in writers if asked.only is None or name in ("transformers", *asked.only)]
    rows = []
    for batch in asked.batches:
        rows += measure({name: writers[name] for name in names}, batch, asked.new, asked.rounds)
    if asked.csv is not None:
        with asked.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)


def measure(writers: dict[str, Write], batch: int, new: int, rounds: int) -> list[dict[str, object]]:
    """All of them in turn, so many rounds; a line and a row for each."""
    ids = torch.randint(0, 50257, (batch, PROMPT), generator=torch.Generator().manual_seed(1))
    first, texts = {}, {}
    rates: dict[str, list[float]] = {name: [] for name in writers}
    for name, write in writers.items():
        started = time.perf_counter()
        write(ids, 16)
        first[name] = time.perf_counter() - started
    loud = 0
    while len(rates["transformers"]) < rounds:
        found, before, began = {}, others(), time.perf_counter()
        for name, write in writers.items():
            started = time.perf_counter()
            texts[name] = write(ids, new)
            found[name] = batch * new / (time.perf_counter() - started)
        if others() - before > QUIET * (time.perf_counter() - began) and loud < 2 * rounds:
            loud += 1
            continue
        for name, rate in found.items():
            rates[name].append(rate)
    base, load = statistics.median(rates["transformers"]), os.getloadavg()[0]
    print(f"batch {batch}: {PROMPT} tokens read, {new} written, {torch.get_num_threads()} threads, load {load:.1f}, "
          f"{loud} loud rounds left out, {len(texts['transformers'][0].unique())} different tokens")  # fmt: skip
    rows = []
    for name in writers:
        middle, same = statistics.median(rates[name]), (texts[name][0] == texts["transformers"][0]).float().mean()
        print(f"  {name:13} {middle:7.1f} tokens/s  {middle / base:5.2f} x  ({min(rates[name]):.1f} to "
              f"{max(rates[name]):.1f}); first call {first[name]:.1f} s; {texts[name][1]:.2f} tokens a pass; "
              f"{same:.1%} of them as transformers'")  # fmt: skip
        rows.append({
            "name": name, "batch": batch, "new": new, "tokens_per_second": round(middle, 2),
            "least": round(min(rates[name]), 2), "most": round(max(rates[name]), 2), "ratio": round(middle / base, 3),
            "first_call_seconds": round(first[name], 1), "tokens_a_pass": round(texts[name][1], 2),
            "same_as_transformers": round(float(same), 4), "rounds": rounds, "loud_rounds": loud,
            "threads": torch.get_num_threads(), "torch": torch.__version__, "load": round(load, 1),
        })  # fmt: skip
    return rows


def others() -> float:
    """Seconds of this machine's cores that went to other processes or to the host's other guests, where it says so."""
    try:
        times = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except OSError:
        return 0.0
    user, nice, system, _idle, _wait, irq, soft, steal = times
    mine = os.times()
    busy = (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")
    return busy - mine.user - mine.system


def ask_trained(folder: Path, prompt: str, new: int) -> None:
    """Acceptance and loss of a trained model's 8-bit copy, greedy and sampled."""
    predictor = anyformer.load(folder, device="cpu")
    model = predictor.model.eval()
    small = anyformer.quantise(copy.deepcopy(model))
    ids = predictor.require_tokenizer().batch([prompt], side="right", device=torch.device("cpu"))[0]
    for name, more in (("greedy", {}), ("sampled", {"do_sample": True, "seed": 1})):
        settings = Generation(max_new_tokens=new, **more)
        plain, made = (generate(model, ids, settings=settings, draft=draft) for draft in (None, "int8"))
        with torch.no_grad():
            wide, rounded = (one(made.ids[:, :-1]).logits.log_softmax(-1) for one in (model, small))
        loss, moved = (-one.gather(-1, made.ids[:, 1:, None]).mean() for one in (wide, rounded))
        agree = (wide.argmax(-1) == rounded.argmax(-1)).float().mean()
        print(f"{name}: {new} tokens, {a_pass(made):.2f} a pass of at most {settings.num_assistant_tokens + 1}, the "
              f"text {'the same' if torch.equal(plain.ids, made.ids) else 'ANOTHER'}; loss {loss:.4f} in float32, "
              f"{moved:.4f} in 8 bits; the most probable token the same in {agree:.1%}")  # fmt: skip


if __name__ == "__main__":
    main()

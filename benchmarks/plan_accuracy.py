"""How near `anyformer plan` comes to what was measured.

    python -m benchmarks.plan_accuracy            training and decode steps on this CPU, by its measured ceilings
    python -m benchmarks.plan_accuracy --csv FILE keeps them, for docs/how-to/plan.md
    python -m benchmarks.plan_accuracy --prove    fails where fewer than ten of them are within 30 % (make prove-plan)
    python -m benchmarks.plan_accuracy --h200     the table of docs/how-to/plan.md, from kept files of an H200

On a CPU both sides are timed by the processor's time on one thread and by the fastest of several: neighbours on a
crowded machine count for less, though they share its caches.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from anyformer import Generation, Network, generate, preset
from anyformer.planning.inputs import blank_inputs
from anyformer.planning.measure import measure_ceilings
from anyformer.planning.model_plan import plan
from anyformer.planning.trace import answers_of
from anyformer.presets.decoders import gpt2, llama

RESULTS = Path(__file__).parent / "results"
H200_FILE = "torch2.11.0-cuda13.0-h200-2026-11-16-training.csv"
CPU_FILE = "torch2.13.0-cpu-1thread-2026-11-20-plan.csv"
NEAR, PROVEN = 0.3, 10  # how far a plan for a CPU may be off, and in how many runs it must not
H200_DECODING = "torch2.11.0-cuda13.0-h200-2026-11-15-decode.csv"


def cpu_shapes() -> list[tuple[str, Network, int, int]]:
    """Networks of different width, depth, length and kind."""
    return [
        ("GPT 128 x 4, 8 x 64", gpt2(128, 4, 4, vocab=512, length=256, dropout=0.0), 8, 64),
        ("GPT 128 x 4, 2 x 256", gpt2(128, 4, 4, vocab=512, length=256, dropout=0.0), 2, 256),
        ("GPT 384 x 6, 4 x 128", gpt2(384, 6, 6, vocab=65, length=256, dropout=0.0), 4, 128),
        ("GPT 768 x 2, 2 x 128", gpt2(768, 2, 12, vocab=8192, length=256, dropout=0.0), 2, 128),
        ("Llama 256 x 4, 2 x 128", llama(256, 4, 8, 2, 704, vocab=512), 2, 128),
        ("BERT tiny, 8 x 64", preset("bert-base-tiny"), 8, 64),
        ("ViT mini, 4 images", preset("vit-mini"), 4, 1),
        ("FT-Transformer tiny, 64 rows", preset("ft-transformer-tiny"), 64, 1),
        ("FT-Transformer, 256 rows", preset("ft-transformer"), 256, 1),
        ("T5 tiny, 16 x 32", preset("t5-small-tiny"), 16, 32),
        ("Mixtral tiny, 4 x 128", preset("mixtral-tiny"), 4, 128),
        ("BERT base, 1 x 128", preset("bert-base"), 1, 128),
    ]


def cpu_decodes() -> list[tuple[str, Network, int, int]]:
    """Networks that fit a cache and networks that do not, for one row and for several."""
    character, llama256 = gpt2(384, 6, 6, vocab=65, length=256, dropout=0.0), llama(256, 4, 8, 2, 704, vocab=512)
    return [
        ("gpt2-tiny, 1 row", preset("gpt2-tiny"), 1, 64),
        ("gpt2-tiny, 16 rows", preset("gpt2-tiny"), 16, 64),
        ("GPT 384 x 6, 1 row", character, 1, 128),
        ("GPT 384 x 6, 8 rows", character, 8, 128),
        ("GPT 768 x 2, 1 row", gpt2(768, 2, 12, vocab=8192, length=256, dropout=0.0), 1, 64),
        ("Llama 256 x 4, 1 row", llama256, 1, 64),
        ("Llama 256 x 4, 32 rows", llama256, 32, 64),
        ("gpt2, 1 row", preset("gpt2"), 1, 64),
    ]


def timed_step(spec: Network, batch: int, length: int) -> float:
    """Seconds of a training step with AdamW, of the processor's time: the fastest of a few, as the ceilings are."""
    net = spec.build(seed=0).train()
    given = blank_inputs(spec, batch, length, device="cpu")
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=1e-4, fused=True)
    found, began = list[float](), time.perf_counter()
    while len(found) < 4 or (time.perf_counter() - began < 4.0 and len(found) < 30):
        start = time.process_time()
        answers = [x for x in answers_of(net(*given.args, **given.named)) if x.requires_grad]
        torch.autograd.backward(answers, [torch.full_like(x, 1e-3) for x in answers])
        optimizer.step()
        optimizer.zero_grad()
        found.append(time.process_time() - start)
    return min(found[1:])


def timed_decode(net: nn.Module, batch: int, prompt: int, counts: tuple[int, int] = (8, 40)) -> float:
    """Seconds of a decode step of `generate`: what the fastest longer answer takes more than the fastest short one."""
    tokens, began = torch.randint(0, 60, (batch, prompt)), time.perf_counter()
    found: tuple[list[float], list[float]] = ([], [])
    while len(found[0]) < 5 or (time.perf_counter() - began < 8.0 and len(found[0]) < 30):
        for count, took in zip(counts, found, strict=True):
            start = time.process_time()
            generate(net, tokens, settings=Generation(max_new_tokens=count, eos_token_id=None))
            took.append(time.process_time() - start)
    return (min(found[1]) - min(found[0])) / (counts[1] - counts[0])


@dataclass(frozen=True)
class CPURun:
    """One training or decode step on a CPU: milliseconds as planned and as measured."""

    kind: str
    what: str
    planned: float
    measured: float

    @property
    def ratio(self) -> float:
        return self.planned / self.measured

    @property
    def near(self) -> bool:
        """Whether the plan is within 30 %."""
        return abs(self.ratio - 1) <= NEAR

    def cells(self) -> list[str]:
        """As the page on planning has them."""
        return [self.kind, self.what, f"{self.planned:.3g}", f"{self.measured:.3g}", f"{self.ratio:.2f}"]


def compare_cpu() -> Iterator[CPURun]:
    """Every shape planned by the ceilings of this machine and timed on it, as they come."""
    torch.set_num_threads(1)
    here = measure_ceilings("cpu", clock=time.process_time)
    print(f"products {here.products / 1e9:.1f} GFLOP/s, bandwidth {here.bandwidth / 1e9:.1f} GB/s, "
          f"torch {torch.__version__}", flush=True)  # fmt: skip
    for name, spec, batch, length in cpu_shapes():
        planned = plan(spec, batch=batch, length=length, device=here).step.total
        yield CPURun("training", name, planned * 1e3, timed_step(spec, batch, length) * 1e3)
    for name, spec, batch, prompt in cpu_decodes():
        took = timed_decode(spec.build(seed=0).eval(), batch, prompt)
        decode = plan(spec, batch=batch, length=prompt + 24, device=here).decode  # in the middle of what is timed
        assert decode is not None
        yield CPURun("decoding", name, decode.total * 1e3, took * 1e3)


def on_cpu(kept: Path | None, *, prove: bool) -> None:
    """Print every run, keep them in a file if asked, and fail if asked where too few are near."""
    rows = []
    for row in compare_cpu():
        rows.append(row)
        print(f"{row.kind:<9} {row.what:<28} planned {row.planned:8.2f} ms  took {row.measured:8.2f} ms  "
              f"{row.ratio:.2f}", flush=True)  # fmt: skip
    near = sum(row.near for row in rows)
    print(f"{near} of {len(rows)} within {NEAR:.0%}")
    if kept is not None:
        with kept.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["kind", "what", "planned_ms", "measured_ms"])
            writer.writerows([row.kind, row.what, f"{row.planned:.4g}", f"{row.measured:.4g}"] for row in rows)
    if prove and near < PROVEN:
        raise SystemExit(f"only {near} runs are within {NEAR:.0%}, {PROVEN} are wanted; is the machine busy?")


def kept_cpu_runs() -> list[CPURun]:
    """The runs that the page on planning shows."""
    with (RESULTS / CPU_FILE).open(encoding="utf-8", newline="") as file:
        return [CPURun(row["kind"], row["what"], float(row["planned_ms"]), float(row["measured_ms"]))
                for row in csv.DictReader(file)]  # fmt: skip


def cpu_markdown() -> str:
    """The table of the page on planning."""
    heads = ["step", "on one CPU thread", "planned, ms", "measured, ms", "ratio"]
    lines = [heads, ["---"] * len(heads), *(row.cells() for row in kept_cpu_runs())]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def h200_shapes() -> dict[str, tuple[Network, int, int]]:
    """The networks behind rows of the H200 file, by their job."""
    small = gpt2(768, 12, 12, dropout=0.0)
    return {
        "gpt2-124m": (small, 32, 1024), "batch-1": (small, 1, 1024), "batch-8": (small, 8, 1024),
        "batch-64": (small, 64, 1024), "length-256": (small, 128, 256),
        "length-4096": (gpt2(768, 12, 12, length=4096, dropout=0.0), 8, 4096),
        "length-16384": (gpt2(768, 12, 12, length=16384, dropout=0.0), 2, 16384),
        "gpt2-355m": (gpt2(1024, 24, 16, dropout=0.0), 16, 1024),
        "llama-1.1b": (llama(2048, 22, 32, 4, 5632, vocab=32000), 8, 2048),
        "vit-train": (preset("vit-b16"), 256, 1), "t5-small": (preset("t5-small"), 64, 128),
    }  # fmt: skip


# None of these was used when the shares of the H200 were fitted to the shapes above.
def h200_others() -> dict[str, tuple[Network, int, int]]:
    """Training steps of the same file that were not fitted to, by their job; and the one that only predicts."""
    return {
        "bert-mlm": (preset("bert-base"), 64, 512), "vit-infer": (preset("vit-b16"), 256, 1),
        "shakespeare-char": (gpt2(384, 6, 6, vocab=65, length=256, dropout=0.2), 64, 256),
        "ft-transformer": (preset("ft-transformer"), 256, 1),
    }  # fmt: skip


def h200_decodes() -> list[tuple[str, int, str, Network]]:
    """Rows of the decoding file, by section and batch: one prompt of 64 tokens and 256 new ones."""
    return [
        ("gpt2-1", 1, "gpt2 124M, generate(compiled(model)), greedy", preset("gpt2")),
        ("gpt2-32", 32, "gpt2 124M, generate(compiled(model)), greedy", preset("gpt2")),
        ("llama", 1, "llama 1.1B, generate(compiled(model)), greedy", llama(2048, 22, 32, 4, 5632, vocab=32000)),
    ]


@dataclass(frozen=True)
class Compared:
    """One row: milliseconds and GiB as planned and as measured, and whether the ceilings were fitted to it."""

    what: str
    fitted: bool
    planned: float
    measured: float
    planned_memory: float | None = None
    measured_memory: float | None = None

    @property
    def ratio(self) -> float:
        return self.planned / self.measured

    def cells(self) -> list[str]:
        """As the page on planning has them."""
        memory = ["", "", ""]
        if self.planned_memory is not None and self.measured_memory is not None:
            memory = [f"{self.planned_memory:.1f}", f"{self.measured_memory:.1f}",
                      f"{self.planned_memory / self.measured_memory:.2f}"]  # fmt: skip
        return [self.what, "yes" if self.fitted else "no", f"{self.planned:.3g}", f"{self.measured:.3g}",
                f"{self.ratio:.2f}", *memory]  # fmt: skip


def compare_h200() -> list[Compared]:
    """What is planned today beside what was measured then, by the fastest of several measurements."""
    with (RESULTS / H200_FILE).open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["system"] == "anyformer" and row["mode"] == "compiled"]
    found = []
    for job, (spec, batch, length) in (h200_shapes() | h200_others()).items():
        mine = [row for row in rows if row["job"] == job and row["ms_per_step"]]
        planned, held = plan(spec, batch=batch, length=length), float(mine[0]["peak_gib"])
        uses = job == "vit-infer"
        seconds = planned.prefill.total if uses else planned.step.total
        found.append(Compared(
            mine[0]["work"], job in h200_shapes(), seconds * 1e3, min(float(row["ms_per_step"]) for row in mine),
            None if uses else planned.memory.peak / 2**30, None if uses else held,
        ))  # fmt: skip
    with (RESULTS / H200_DECODING).open(encoding="utf-8", newline="") as file:
        told = {(row["section"], row["batch"], row["what"]): row for row in csv.DictReader(file)}
    for section, batch, what, spec in h200_decodes():
        rate = float(told[section, str(batch), what]["value"])
        decode = plan(spec, batch=batch, length=64 + 128).decode  # in the middle of what is written
        assert decode is not None
        found.append(Compared(f"decode step of {what.split(',')[0]}, rows: {batch}", False, decode.total * 1e3,
                              1e3 * batch / rate))  # fmt: skip
    return found


def markdown(rows: list[Compared]) -> str:
    """The table of the page on planning."""
    heads = ["on one H200, bf16, compiled", "fitted to", "planned, ms", "measured, ms", "ratio", "planned, GiB",
             "measured, GiB", "ratio"]  # fmt: skip
    lines = [heads, ["---"] * len(heads), *(row.cells() for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--h200", action="store_true")
    parser.add_argument("--csv", type=Path, metavar="FILE")
    parser.add_argument("--prove", action="store_true")
    asked = parser.parse_args()
    if asked.h200:
        print(markdown(compare_h200()))
    else:
        on_cpu(asked.csv, prove=asked.prove)

"""What anyformer is meant to reach on one H200, and whether the rows of a run reach it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.gpu.jobs import OURS
from benchmarks.gpu.results import Row

LOSS_TOLERANCE = 0.02  # nats between 50 losses in bf16 and in float32


class Table:
    """The rows of a run, asked for by job, system and mode."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows

    def row(self, job: str, system: str, mode: str) -> Row | None:
        return next((r for r in self.rows if (r["job"], r["system"], r["mode"]) == (job, system, mode)), None)

    def figure(self, column: str, job: str, mode: str = "compiled", system: str = OURS) -> float | None:
        row = self.row(job, system, mode)
        return None if row is None else number(row, column)

    def best_peer(self, job: str) -> float | None:
        """Units a second of the fastest other program."""
        found = [number(r, "per_second") for r in self.rows if r["job"] == job and r["system"] != OURS]
        return max((value for value in found if value is not None), default=None)


def number(row: Row, column: str) -> float | None:
    return float(row[column]) if row.get(column) else None


def quotient(over: float | None, under: float | None) -> float | None:
    return None if over is None or not under else over / under


@dataclass(frozen=True)
class Bar:
    """A limit on one figure of a run."""

    work: str
    wanted: str
    limit: float
    measure: Callable[[Table], float | None]
    at_least: bool = True
    form: str = ".3f"

    def judge(self, table: Table) -> tuple[str, str]:
        """The figure and the verdict, in words."""
        value = self.measure(table)
        if value is None:
            return "–", "not measured"
        met = value >= self.limit if self.at_least else value <= self.limit
        return format(value, self.form), "met" if met else "missed"


def against_best(job: str) -> Callable[[Table], float | None]:
    return lambda table: quotient(table.figure("per_second", job), table.best_peer(job))


def own(column: str, job: str, mode: str = "compiled") -> Callable[[Table], float | None]:
    return lambda table: table.figure(column, job, mode)


BARS = (
    Bar("GPT-2 124M, 32 x 1024", "≥ 1.1 x nanoGPT compiled (aim 1.2)", 1.1, lambda table: quotient(
        table.figure("per_second", "gpt2-124m"), table.figure("per_second", "gpt2-124m", system="nanoGPT"))),
    Bar("", "peak memory ≤ 14 GiB", 14, own("peak_gib", "gpt2-124m"), at_least=False, form=".1f"),
    Bar("", "first step ≤ 30 s, nothing compiled before", 30,
        own("first_step_s", "cold-start", "nothing compiled before"), at_least=False, form=".1f"),
    Bar("", "first step ≤ 8 s, compiled before", 8, own("first_step_s", "warm-start", "compiled before"),
        at_least=False, form=".1f"),
    Bar("", f"50 losses within {LOSS_TOLERANCE} nats of plain float32", LOSS_TOLERANCE,
        own("loss_difference", "losses", "bf16 beside plain float32"), at_least=False, form=".4f"),
    Bar("", "deterministic ≤ 1.15 x the time", 1.15, lambda table: quotient(
        table.figure("ms_per_step", "modes-large", "deterministic"), table.figure("ms_per_step", "modes-large")),
        at_least=False),
    Bar("GPT-2 355M, 16 x 1024", "≥ 1.15 x the best peer", 1.15, against_best("gpt2-355m")),
    Bar("", "MFU ≥ .5", 0.5, own("mfu", "gpt2-355m")),
    Bar("Llama-shaped 1.1B, 8 x 2048", "≥ 1.15 x the best peer", 1.15, against_best("llama-1.1b")),
    Bar("", "MFU ≥ .5", 0.5, own("mfu", "llama-1.1b")),
    Bar("shakespeare_char, Muon", "1,500 steps within 10 s: ≤ 6.67 ms a step", 20 / 3,
        own("ms_per_step", "shakespeare-char", "compiled, Muon"), at_least=False),
    Bar("FT-Transformer, 256 rows", "≥ 100,000 rows a second", 100_000, own("per_second", "ft-transformer"),
        form=",.0f"),
    Bar("BERT-base masked LM, 64 x 512", "≥ 1.25 x transformers", 1.25, against_best("bert-mlm")),
    Bar("ViT-B/16 training, 256 images", "≥ 1.15 x timm", 1.15, against_best("vit-train")),
    Bar("T5-small, 64 x (128 -> 128)", "≥ 1.25 x transformers", 1.25, against_best("t5-small")),
    Bar("Hyena operator, 64k tokens", "≤ 12 ms in one row of 64k", 12,
        own("ms_per_step", "operator-65536", "Hyena, compiled"), at_least=False, form=".1f"),
    Bar("", "not slower than our attention in rows of 8k", 1.0, lambda table: quotient(
        table.figure("ms_per_step", "operator-8192", "Hyena, compiled"),
        table.figure("ms_per_step", "operator-8192", "attention, compiled")), at_least=False),
)  # fmt: skip

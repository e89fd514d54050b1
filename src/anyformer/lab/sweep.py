"""A sweep of small language models on a user's text with the ordinary training, and a scaling law fitted to it.

Every size is trained for every length, each run with a schedule of its own, as losses on the way of a longer schedule
are too high (2203.15556, section 3.1). A sweep that was stopped continues with the runs that are missing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from anyformer.amounts import count_text
from anyformer.core.model import Model
from anyformer.core.stack import Stack
from anyformer.embeds import Tokens
from anyformer.errors import Stopped, UserError
from anyformer.inference.devices import pick_device
from anyformer.lab.claim import Plot
from anyformer.lab.plot import draw
from anyformer.log import Log
from anyformer.planning import scaling
from anyformer.planning.measure import measure_ceilings
from anyformer.planning.model_plan import plan
from anyformer.planning.text import WIDTH
from anyformer.presets import preset
from anyformer.safe_files import read_json, replace_file
from anyformer.training.train import Run, resume, train

SHAPES = ((32, 2), (48, 2), (64, 3), (96, 3))  # width and depth of a decoder-mini
LENGTHS = (1, 2, 4, 8)  # multiples of the shortest training
ROWS, WINDOW, VOCAB = 8, 128, 1024  # per step; the vocabulary is the default for a short text
FEWEST_STEPS = 20  # steps of the shortest training: with fewer a model is hardly past its warm-up
RUN_SECONDS = 5.0  # overhead of a run beside its steps: reading, tokenizing, evaluation, report
PASSES = 4  # epochs up to which repeated text is nearly as good as new text (2305.16264)
FILE = "sweep.json"


@dataclass(frozen=True)
class SweepGrid:
    """The grid of a sweep, stored in its folder at the start, so that it resumes with the same runs."""

    source: str
    minutes: float
    steps: list[int]
    shapes: list[list[int]] = field(default_factory=lambda: [list(shape) for shape in SHAPES])

    def runs(self) -> list[tuple[int, int, int]]:
        """(width, depth, steps) of every run, short ones first."""
        return [(width, depth, steps) for steps in self.steps for width, depth in self.shapes]


@dataclass(frozen=True)
class SweptLaw:
    """The runs of a sweep, and the law fitted to them."""

    runs: list[scaling.TrainedRun]
    fitted: scaling.FittedLaw
    passes: float  # of the longest run over the text
    folder: Path

    @property
    def largest(self) -> scaling.TrainedRun:
        """The run with the most compute."""
        return max(self.runs, key=lambda run: run.parameters * run.tokens)

    @property
    def better(self) -> str:
        """Whether "bigger" or "longer" lowers the loss of the largest run more at the same cost."""
        return self.fitted.law.better(self.largest.parameters, self.largest.tokens)

    @property
    def agreement(self) -> float:
        """The fraction of bootstrap laws that agree with `better`."""
        said = [law.better(self.largest.parameters, self.largest.tokens) for law in self.fitted.resampled]
        return said.count(self.better) / max(1, len(said))

    def to_dict(self, flops: float | None = None) -> dict[str, Any]:
        """All results as JSON-compatible data, with the optimum for a budget, or for ten times the largest run."""
        flops = flops or 60 * self.largest.parameters * self.largest.tokens
        best, size = self.fitted.optimum(flops) if self.fitted.law.has_optimum else (None, None)
        return {
            "runs": [asdict(run) for run in self.runs],
            "law": {name: getattr(self.fitted.law, name) for name in ("E", "A", "B", "alpha", "beta")},
            "intervals": self.fitted.intervals, "error": self.fitted.error, "better": self.better,
            "agreement": self.agreement, "passes": self.passes, "folder": str(self.folder),
            "optimum": None if best is None else {"flops": flops, "parameters": best.parameters, "tokens": best.tokens,
                                                 "interval": size},
        }  # fmt: skip


def sweep(source: Path, folder: Path, *, minutes: float, device: str = "auto", log: Log) -> SweptLaw:
    """Train the missing models, fit the law to all of them, and store it in the folder."""
    scaling.check_fitting()
    if not source.is_file():
        raise UserError("is not a text file", where=str(source), fix="give one file of text, as train takes it")
    place = pick_device(device)
    grid = open_grid(source, folder, minutes, place.type)
    runs, passes = [], 0.0
    for number, (width, depth, steps) in enumerate(grid.runs(), 1):
        path = folder / f"width-{width}-steps-{steps}"
        done = (path / "run.json").is_file()
        log(f"sweep    {number} of {len(grid.runs())}  width {width}, depth {depth}, {steps} steps")
        try:
            run = resume(path, quiet=True) if done else train_one(source, path, width, depth, steps, device)
        except Stopped as stopped:
            raise Stopped("the sweep was stopped; the same command resumes it", code=stopped.exit_code) from None
        runs.append(finished(run))
        passes = max(passes, runs[-1].tokens / read_json(path / "data.json")["parts"]["train"]["tokens"])
    found = SweptLaw(runs, scaling.fit(runs), passes, folder)
    replace_file(folder / "law.json", json.dumps(found.to_dict(), indent=1) + "\n")
    replace_file(folder / "law.svg", draw(losses_plot(found)))
    return found


def open_grid(source: Path, folder: Path, minutes: float, device: str) -> SweepGrid:
    """The grid of a sweep started in this folder, or a new one that takes about `minutes`."""
    path = folder / FILE
    if path.is_file():
        grid = SweepGrid(**read_json(path))
        if (grid.source, grid.minutes) != (str(source.resolve()), minutes):
            raise UserError(f"holds a sweep of {grid.source} in {grid.minutes:g} minutes", where=str(folder),
                            fix="give another --out, or the same file and minutes")  # fmt: skip
        return grid
    least = shortest(minutes, device)
    grid = SweepGrid(str(source.resolve()), minutes, [times * least for times in LENGTHS])
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(path, json.dumps(asdict(grid), indent=1) + "\n")
    return grid


def shortest(minutes: float, device: str) -> int:
    """Steps of the shortest training, from the planner's step times for this machine."""
    ceilings = measure_ceilings(device if device in ("cpu", "cuda") else "cpu")
    spec = preset("decoder-mini")
    assert isinstance(spec, Model) and isinstance(spec.embed, Tokens) and isinstance(spec.stack, Stack)
    a_step = 0.0
    for width, depth in SHAPES:
        small = spec.replace(stack=spec.stack.replace(width=width, depth=depth), embed=spec.embed.replace(vocab=VOCAB))
        a_step += plan(small, batch=ROWS, length=WINDOW, device=ceilings).step.total
    beside = len(SHAPES) * len(LENGTHS) * RUN_SECONDS
    steps = int((60 * minutes - beside) / (sum(LENGTHS) * a_step))
    if steps < FEWEST_STEPS:
        least = (beside + FEWEST_STEPS * sum(LENGTHS) * a_step) / 60
        raise UserError(f"{minutes:g} minutes are too few for {len(SHAPES) * len(LENGTHS)} runs", where="--minutes",
                        fix=f"use {least + 0.5:.0f} or more on this machine")  # fmt: skip
    return steps


def train_one(source: Path, path: Path, width: int, depth: int, steps: int, device: str) -> Run:
    """One run as by `anyformer train`, evaluated only at its end."""
    settings = {
        "model.stack.width": width, "model.stack.depth": depth, "data.tokenizer.max_length": WINDOW,
        "training.eval_every": steps, "training.save_every": steps, "training.compile": False,
    }  # fmt: skip
    return train(
        source, task="lm", model="decoder-mini", steps=steps, batch_size=ROWS, out=path, device=device,
        settings=settings, progress="silent", quiet=True,
    )  # fmt: skip


def finished(run: Run) -> scaling.TrainedRun:
    """Size, tokens and validation loss of a run, in nats per token of the shared tokenizer."""
    parameters = sum(p.numel() for p in run.folder.config().model.build(device="meta").parameters())
    return scaling.TrainedRun(parameters, run.facts["step"] * ROWS * WINDOW, run.metrics["loss"])


# ---------------------------------------------------------------- text and plot


def sweep_text(found: SweptLaw, flops: float | None = None) -> str:
    """The runs, the law with its error bars, and advice for more compute and for a given budget."""
    law, bars = found.fitted.law, found.fitted.intervals
    sizes, tokens = (sorted({getattr(run, name) for run in found.runs}) for name in ("parameters", "tokens"))
    losses = {(run.parameters, run.tokens): run.loss for run in found.runs}
    lines = [row("loss", ["parameters", *(f"{count_text(t)} tokens" for t in tokens)])]
    lines += [row("", [count_text(n), *(f"{losses[n, t]:.3f}" for t in tokens)]) for n in sizes]
    lines.append(named("law", f"loss = E + A / N^alpha + B / D^beta, log losses within {found.fitted.error:.1%}"))
    for name in ("E", "A", "B", "alpha", "beta"):
        low, high = bars[name]
        lines.append(named(name, f"{getattr(law, name):.3g} ({low:.3g} to {high:.3g})"))
    both = law.alpha + law.beta
    lines.append(named("best use", f"size grows as C^{law.beta / both:.2f}, tokens as C^{law.alpha / both:.2f} "
                       "(hoffmann: .45 and .55)"))  # fmt: skip
    largest = found.largest
    lines.append(named("next", f"{found.better}: from {count_text(largest.parameters)} parameters and "
                       f"{count_text(largest.tokens)} tokens on it lowers the loss more at the same price; "
                       f"{found.agreement:.0%} of resampled laws agree"))  # fmt: skip
    ten_times = 60 * largest.parameters * largest.tokens
    budgets = (("ten times", ten_times), ("budget", flops)) if law.has_optimum else ()
    lines += [budget_line(found, name, one) for name, one in budgets if one]
    if not law.has_optimum:
        lines.append(named("note", "runs as these say of no size that it is the best; give the sweep more minutes"))
    if found.passes > PASSES:
        lines.append(named("note", f"the longest runs read the text {found.passes:.1f} times; above {PASSES} a text "
                           "read again teaches less than new text, and longer looks worse than it is"))  # fmt: skip
    lines.append(named("kept", f"{found.folder}: the runs, law.json, law.svg"))
    return "\n".join(lines)


def budget_line(found: SweptLaw, name: str, flops: float) -> str:
    best, (low, high) = found.fitted.optimum(flops)
    spread = f"{count_text(low)} to {count_text(high)}"
    return named(name, f"{flops:.1e} FLOPs: {count_text(best.parameters)} parameters ({spread}), "
                 f"{count_text(best.tokens)} tokens")  # fmt: skip


def named(name: str, words: str) -> str:
    return f"{name:<{WIDTH}} {words}"


def row(name: str, cells: Sequence[str]) -> str:
    return named(name, "".join(f"{cell:<16}" for cell in cells).rstrip())


def losses_plot(found: SweptLaw) -> Plot:
    sizes = sorted({run.parameters for run in found.runs})
    lines = {f"{count_text(size)} parameters": sorted((r.tokens, r.loss) for r in found.runs if r.parameters == size)
             for size in sizes}  # fmt: skip
    return Plot("loss of every run", "tokens", "nats a token", lines, log_across=True)

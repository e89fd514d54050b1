"""Seven ways to pretrain on one text with one budget of FLOPs, then the small GLUE tasks, beside training from scratch.

    python -m benchmarks.pretraining --data DIR [--steps 3000] [--device cuda] [--seconds 350] [--csv FILE]
    python -m benchmarks.pretraining --data DIR --steps 5 --width 32 --rows 64 --vocab 600 --characters 200000

The second line only sees whether everything runs, also on a CPU.

DIR holds wikitext2/train.txt.xz and glue_small/{CoLA,MRPC,RTE,STS-B}. The budget is what BERT takes for `--steps` steps
of 64 rows of 128 tokens; every other model gets as many steps as the same FLOPs pay for, a teacher's pass included.
FLOPs are those that torch counts in the products of a step. Models are trained side by side in processes, which
changes their seconds and nothing else. Fine-tuning takes the last tenth of the training rows to choose the best
weights; scores are of the public development rows: Matthews correlation for CoLA, accuracy for MRPC (its test rows) and
RTE, Spearman for STS-B. T5 writes its answers as text. Each row of the CSV is written when it is known.
`python -m benchmarks.pretraining_page` writes docs/pretraining-results.md from the newest CSV.
"""

from __future__ import annotations

import argparse
import csv
import io
import logging
import lzma
import math
import multiprocessing
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

import anyformer
from anyformer import UserError
from anyformer.data.order import Order
from anyformer.data.reopen import reopen
from anyformer.evaluation.metric_directions import direction
from anyformer.parent_death import end_with_parent
from anyformer.presets.decoders import gpt2
from anyformer.presets.encoders import albert, bert, electra, roberta
from anyformer.presets.pairs import t5
from anyformer.slots import Network
from anyformer.training.loader import Steps
from anyformer.training.run.folder import RunFolder
from anyformer.training.train import Run

LENGTH, BATCH, DEPTH, HEADS = 128, 64, 4, 4
PRETRAINING_RATE = 5e-4
RATES = (1e-4, 5e-4)  # of fine-tuning; what is best on the validation rows is kept
PROBED = 4  # rows of the step whose FLOPs are counted
PROBE_TEXT = 200_000  # characters that are enough for it
COLUMNS = ("model", "stage", "seed", "parameters", "steps", "flops", "seconds", "metric", "score", "note")
TEACHER = "bert"


@dataclass(frozen=True)
class Pretraining:
    """A model of the lectures: its network by width, how it is pretrained, and whose student it is."""

    task: str
    network: Callable[[int], Network]
    settings: dict[str, Any] = field(default_factory=dict)
    teacher: str | None = None  # whose halved network it starts from


MODELS = {
    "gpt": Pretraining("lm", lambda width: gpt2(width, DEPTH, HEADS, length=LENGTH)),
    "bert": Pretraining("masked", lambda width: bert(width, DEPTH, HEADS, length=LENGTH),
                        {"objective.static": True}),
    "roberta": Pretraining("masked", lambda width: roberta(width, DEPTH, HEADS, length=LENGTH)),
    "electra": Pretraining("replaced",
                           lambda width: electra(width, DEPTH, HEADS, length=LENGTH, inner=width)),
    "albert": Pretraining("masked",
                          lambda width: albert(width, DEPTH, HEADS, length=LENGTH, inner=width // 2)),
    "distilbert": Pretraining("distill", lambda width: bert(width, DEPTH // 2, HEADS, length=LENGTH),
                              {"model.stack.depth": DEPTH // 2}, teacher=TEACHER),
    "t5": Pretraining("spans", lambda width: t5(width, DEPTH, HEADS, size=width // HEADS)),
}  # fmt: skip


# ---------------------------------------------------------------- the tasks


@dataclass(frozen=True)
class Rows:
    """Texts (one or two a row) and their answers."""

    texts: list[tuple[str, ...]]
    answers: list[str]


@dataclass(frozen=True)
class GlueTask:
    """One of the small GLUE tasks: where its rows are, and how an answer is scored."""

    folder: str
    train: str
    held_out: str
    columns: tuple[int, tuple[int, ...]]  # of the answer, and of the texts
    has_header: bool
    score: Callable[[list[str], list[str]], float]
    metric: str
    is_number: bool = False

    def read(self, data: Path, name: str, most: int | None) -> Rows:
        """The rows of one file, without those that lack a column."""
        answer, texts = self.columns
        with lzma.open(data / "glue_small" / self.folder / f"{name}.xz", "rt", encoding="utf-8-sig") as file:
            lines = [line.rstrip("\n").split("\t") for line in file][self.has_header :]
        lines = [line for line in lines if len(line) > max(answer, *texts)][:most]
        return Rows([tuple(line[at] for at in texts) for line in lines], [line[answer] for line in lines])


def matthews(truth: list[str], said: list[str]) -> float:
    """Matthews correlation of two classes called 0 and 1."""
    counts = {(a, b): sum(pair == (a, b) for pair in zip(truth, said, strict=True)) for a in "01" for b in "01"}
    yes, no, missed, wrong = counts["1", "1"], counts["0", "0"], counts["1", "0"], counts["0", "1"]
    below = math.sqrt((yes + wrong) * (yes + missed) * (no + wrong) * (no + missed))
    return (yes * no - wrong * missed) / below if below else 0.0


def accuracy(truth: list[str], said: list[str]) -> float:
    return sum(a == b for a, b in zip(truth, said, strict=True)) / len(truth)


def spearman(truth: list[str], said: list[str]) -> float:
    """Correlation of the ranks; an answer that is no number counts as 0."""
    ranks = [mean_ranks([as_number(value) for value in values]) for values in (truth, said)]
    stacked = torch.tensor(ranks, dtype=torch.float64)
    return float(torch.corrcoef(stacked)[0, 1].nan_to_num())


def as_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def mean_ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 0, equal values sharing the mean of theirs."""
    order = sorted(range(len(values)), key=lambda row: values[row])
    ranks = [0.0] * len(values)
    at = 0
    while at < len(order):
        end = at
        while end + 1 < len(order) and values[order[end + 1]] == values[order[at]]:
            end += 1
        for row in order[at : end + 1]:
            ranks[row] = (at + end) / 2
        at = end + 1
    return ranks


GLUE = {
    "cola": GlueTask("CoLA", "in_domain_train.tsv", "in_domain_dev.tsv", (1, (3,)), False, matthews, "matthews"),
    "mrpc": GlueTask("MRPC", "msr_paraphrase_train.txt", "msr_paraphrase_test.txt", (0, (3, 4)), True, accuracy,
                     "accuracy"),
    "rte": GlueTask("RTE", "train.tsv", "dev.tsv", (3, (1, 2)), True, accuracy, "accuracy"),
    "sts-b": GlueTask("STS-B", "sts-train.csv", "sts-dev.csv", (4, (5, 6)), False, spearman, "spearman", True),
}  # fmt: skip


# ---------------------------------------------------------------- what is run


@dataclass(frozen=True)
class Place:
    """Where and how large: all that a process must know."""

    data: Path
    out: Path
    device: str
    width: int
    steps: int
    rows: int | None  # of a GLUE task at most
    epochs: float
    vocab: int
    deadline: float = math.inf  # on the clock of the day; no fine-tuning begins after it

    @property
    def text(self) -> Path:
        return self.out / "train.txt"

    @property
    def valid_text(self) -> Path:
        return self.out / "valid.txt"

    @property
    def words(self) -> Path:
        """The run of one step whose vocabulary all others have."""
        return self.out / "words"


def common(seed: int, lr: float) -> dict[str, Any]:
    return {"training.seed": seed, "training.workers": 0, "training.compile": False,
            "training.optimizer.lr": lr, "training.optimizer.layer_lr_decay": 1.0}  # fmt: skip


def pretrain(name: str, place: Place, steps: int, text: Path, out: Path, batch: int) -> Run:
    """Pretrain one model for some steps on a text."""
    model = MODELS[name]
    settings = common(0, PRETRAINING_RATE) | model.settings | {
        "training.steps": steps, "training.batch_size": batch, "data.tokenizer.max_length": LENGTH,
        "data.split.valid_file": (str(place.valid_text),), "training.eval_every": steps,
    }  # fmt: skip
    # One vocabulary for all but T5, whose sentinels are tokens of their own.
    if model.task != "spans" and place.words.is_dir() and model.teacher is None:
        settings["data.tokenizer.folder"] = str(best(place.words))
    else:
        settings["data.tokenizer.vocab_size"] = place.vocab
    if model.teacher is None:
        return anyformer.train(text, model.task, model.network(place.width), settings=settings, out=out,
                               device=place.device, quiet=True)  # fmt: skip
    del settings["data.tokenizer.vocab_size"]
    teacher = place.out / model.teacher
    return anyformer.train(text, model.task, start=teacher, teacher=teacher, settings=settings, out=out,
                           device=place.device, quiet=True)  # fmt: skip


def best(run: Path) -> Path:
    return RunFolder.open(run).best()


def flops_of_step(run: Path, rows: int) -> float:
    """FLOPs of a step of `rows` rows: all passes of all phases, forward and backward, as torch counts products."""
    folder = RunFolder.open(run)
    config, data = folder.config(), reopen(folder.cache)
    assert data is not None
    model = config.model.build(seed=0)
    batch = Steps(data.train, Order.of(data.train, PROBED, 0), config.objective, PROBED)[0][0]
    with FlopCounterMode(display=False) as counter:
        for phase in config.objective.phases():
            phase.loss(model, batch).backward()
    return counter.get_total_flops() * rows / len(batch)


def measure_budget(place: Place) -> float:
    """FLOPs of BERT's steps; the run of one step that tells leaves the vocabulary for the others."""
    logging.disable(logging.INFO)
    run = pretrain(TEACHER, place, 1, place.text, place.words, PROBED)
    return place.steps * flops_of_step(run.path, BATCH)


def run_pretraining(name: str, place: Place, budget: float) -> list[dict[str, Any]]:
    """Pretrain one model within the budget: the row of the table."""
    began = time.perf_counter()
    logging.disable(logging.INFO)
    probe = place.out / f"probe-{name}"
    try:
        each = flops_of_step(pretrain(name, place, 1, place.out / "probe.txt", probe, PROBED).path, BATCH)
        run = pretrain(name, place, max(1, round(budget / each)), place.text, place.out / name, BATCH)
    except UserError as error:
        return [dict.fromkeys(COLUMNS, "") | {"model": name, "stage": "pretrain", "note": str(error)}]
    finally:
        shutil.rmtree(probe, ignore_errors=True)
    metric, score = next(iter(run.metrics.items()))
    return [{"model": name, "stage": "pretrain", "seed": 0, "parameters": parameters(run), "steps": run.facts["step"],
             "flops": f"{each * run.facts['step']:.4g}", "seconds": round(time.perf_counter() - began, 1),
             "metric": metric, "score": round(score, 4), "note": ""}]  # fmt: skip


def parameters(run: Run) -> int:
    return sum(p.numel() for p in run.predictor().model.parameters())


def run_fine_tuning(name: str, task: str, place: Place, seed: int, pretrained: bool) -> list[dict[str, Any]]:
    """One model on one task, from its pretrained weights or from fresh ones with the same vocabulary."""
    began = time.perf_counter()
    logging.disable(logging.INFO)
    glue = GLUE[task]
    stage = task if pretrained else f"{task} from scratch"
    row = dict.fromkeys(COLUMNS, "") | {"model": name, "stage": stage, "seed": seed, "metric": glue.metric}
    if time.time() > place.deadline:
        return [row | {"note": "not begun: the time was up"}]
    held_out = glue.read(place.data, glue.held_out, place.rows)
    out = place.out / f"{name}-{task}-{seed}-{pretrained}"
    try:
        runs = [fine_tune(name, task, place, seed, rate, pretrained, out / str(rate)) for rate in RATES]
        best_run = max(runs, key=lambda run: validation_score(run))
        said = answer(best_run, held_out, glue, task, writes_answers(name), place.device)
    except UserError as error:
        return [row | {"note": str(error)}]
    row |= {"parameters": parameters(best_run), "steps": best_run.facts["step"],
            "seconds": round(time.perf_counter() - began, 1),
            "note": f"learning rate {RATES[runs.index(best_run)]:g}"}  # fmt: skip
    shutil.rmtree(out, ignore_errors=True)
    return [row | {"score": round(glue.score(held_out.answers, said), 4)}]


def fine_tune(name: str, task: str, place: Place, seed: int, rate: float, pretrained: bool, out: Path) -> Run:
    """One training on the rows of a GLUE task."""
    glue, folder = GLUE[task], place.out / name
    train = glue.read(place.data, glue.train, place.rows)
    writes = writes_answers(name)
    settings = common(seed, rate) | {"training.epochs": place.epochs, "training.batch_size": 32,
                                     "data.split.valid": 0.1, "data.split.test": 0.0,
                                     "data.tokenizer.max_length": LENGTH}  # fmt: skip
    if writes:
        settings["objective.num_beams"] = 1
    if not pretrained:
        settings["data.tokenizer.folder"] = str(best(folder))
    kind = "translate" if writes else "regress" if glue.is_number else "classify"
    model = None if pretrained else MODELS[name].network(place.width)
    return anyformer.train(table(train, glue, task, writes), kind, model, target="answer", settings=settings,
                           start=folder if pretrained else None, out=out, device=place.device,
                           quiet=True)  # fmt: skip


def writes_answers(name: str) -> bool:
    """Whether a model answers in words, as T5 does."""
    return MODELS[name].task == "spans"


def validation_score(run: Run) -> float:
    """How good a run was on its validation rows: the larger the better."""
    found = run.facts["best"]
    return float(found["value"]) * (-1.0 if direction(found["metric"]) == "min" else 1.0)


def table(rows: Rows, glue: GlueTask, task: str, writes: bool) -> dict[str, list[str]]:
    """The rows as columns; for T5 one text that names its task and its parts."""
    if writes:
        return {"source": [as_source(texts, task) for texts in rows.texts],
                "answer": [written(answer, glue) for answer in rows.answers]}  # fmt: skip
    columns = {f"text{at + 1}": list(column) for at, column in enumerate(zip(*rows.texts, strict=True))}
    return columns | {"answer": rows.answers}


def as_source(texts: tuple[str, ...], task: str) -> str:
    return f"{task} " + " ".join(f"sentence{at + 1}: {text}" for at, text in enumerate(texts))


def written(answer: str, glue: GlueTask) -> str:
    """An answer as T5 writes it: scores in steps of a fifth (1910.10683, 2.4)."""
    return f"{round(5 * float(answer)) / 5:.1f}" if glue.is_number else answer


def answer(run: Run, rows: Rows, glue: GlueTask, task: str, writes: bool, device: str) -> list[str]:
    """What the best model of a run says about some rows."""
    predictor = run.predictor(device if device != "auto" else "cpu")
    if writes:
        sources = [as_source(texts, task) for texts in rows.texts]
        parts = (sources[at : at + 256] for at in range(0, len(sources), 256))
        return [text.strip() for part in parts for text in predictor.generate(part, max_new_tokens=8, num_beams=1)]
    cells = table(rows, glue, task, writes)
    cells.pop("answer")
    found = predictor.predict([dict(zip(cells, row, strict=True)) for row in zip(*cells.values(), strict=True)],
                              batch_size=256)  # fmt: skip
    return [str(value) for value in found]


# ---------------------------------------------------------------- all of it


def run_all(place: Place, names: Sequence[str], seeds: int, workers: int) -> Iterator[dict[str, Any]]:
    """Every row as soon as it is known: models side by side, students after their teacher, tasks after their model."""
    (place.out / "probe.txt").write_text(place.text.read_text(encoding="utf-8")[:PROBE_TEXT], encoding="utf-8")
    context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    students = [name for name in names if MODELS[name].teacher is not None]
    with ProcessPoolExecutor(workers, context, end_with_parent, (os.getpid(),)) as pool:
        budget = pool.submit(measure_budget, place).result()
        waiting: dict[Future[list[dict[str, Any]]], str] = {}

        def start(models: Sequence[str]) -> None:
            for name in models:
                waiting[pool.submit(run_pretraining, name, place, budget)] = name

        def fine_tune(name: str, seed: int) -> None:
            for task in GLUE:
                for pretrained in (True, False):
                    waiting[pool.submit(run_fine_tuning, name, task, place, seed, pretrained)] = ""

        start([TEACHER] if students and TEACHER not in names else [])
        start([name for name in names if name not in students])
        ready: list[str] = []
        for seed in range(seeds):  # all models have their first seed before any has its second
            for name in ready:
                fine_tune(name, seed)
            while waiting:
                done = next(as_completed(waiting))
                name = waiting.pop(done)
                rows = done.result()
                yield from rows
                if not name or not rows[0]["steps"]:
                    continue
                start(students if name == TEACHER else [])
                if name in names:
                    ready.append(name)
                    fine_tune(name, seed)


def unpack(data: Path, out: Path, characters: int | None) -> None:
    """The texts as files of their own."""
    for name in ("train", "valid"):
        with lzma.open(data / "wikitext2" / f"{name}.txt.xz", "rt", encoding="utf-8") as file:
            text = file.read(-1 if characters is None else characters if name == "train" else characters // 10)
        (out / f"{name}.txt").write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--vocab", type=int, default=8192)
    parser.add_argument("--epochs", type=float, default=4.0)
    parser.add_argument("--seconds", type=float, default=math.inf, help="after which no fine-tuning begins")
    parser.add_argument("--rows", type=int, help="rows of a GLUE task at most")
    parser.add_argument("--characters", type=int, help="of the text at most")
    parser.add_argument("--only", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--csv", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pretraining-") as folder:
        place = Place(asked.data, Path(folder), asked.device, asked.width, asked.steps, asked.rows, asked.epochs,
                      asked.vocab, time.time() + asked.seconds)  # fmt: skip
        unpack(asked.data, place.out, asked.characters)
        began = time.perf_counter()
        with asked.csv.open("w", newline="") if asked.csv else io.StringIO() as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            for row in run_all(place, asked.only, asked.seeds, asked.workers):
                writer.writerow(row)
                file.flush()
                print(f"{time.perf_counter() - began:6.1f} s  " + " ".join(f"{key}={row[key]}" for key in COLUMNS[:-1]),
                      row["note"], flush=True)  # fmt: skip


if __name__ == "__main__":
    main()

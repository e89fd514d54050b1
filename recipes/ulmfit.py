"""ULMFiT beside plain fine-tuning and LoRA, with few labels and with all: a language model of general text, then of the
texts of the task, then a classifier (SST-2).

    python recipes/ulmfit.py --data textcls/ --corpus wikitext2/train.txt.xz
    python recipes/ulmfit.py --data textcls/ --corpus wikitext2/train.txt.xz --size cpu --models decoder-mini \
        --seeds 0 1 2 --csv ulmfit.csv
    python recipes/ulmfit.py --data textcls/ --corpus wikitext2/train.txt.xz --size full --device cuda --csv ulmfit.csv

The first line is the short form, which shows that everything runs; the others give a result, the second of a small
Transformer on one CPU core.
Methods: `scratch` starts from nothing; `plain` fine-tunes all weights at one rate; `ulmfit` has its four settings
(slower layers towards the input, slanted triangle, unfreezing layer by layer, concat pooling); `lora` trains adapters.
A line of figures each: accuracy on the test rows, trained parameters, bytes of the optimizer's state, and the peak of
the process's memory and of the GPU's. At the sizes `cpu` and `full` each run is a process of its own, for its peak.

hardware: one CPU core for --size cpu, one H200 for full. cost and figures: docs/how-to/fine-tune.md, benchmarks/LOG.md.
"""

from __future__ import annotations

import argparse
import csv
import json
import logging
import lzma
import multiprocessing
import os
import random
import sys
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

import torch

from anyformer.checkpoints import tensors
from anyformer.parent_death import end_with_parent
from anyformer.training.checkpoint import OPTIM_FILE
from anyformer.training.setup.memory import peak
from anyformer.training.step import ADAPTER
from anyformer.training.train import Run, train

MODELS = ("lstm-lm", "decoder-mini")
METHODS = ("scratch", "plain", "ulmfit", "lora")
LABELS = (100, 500, 6920)
ULMFIT = {
    "training.optimizer.layer_lr_decay": 1 / 2.6,
    "training.schedule": {"type": "Slanted", "cut": 0.1, "ratio": 32.0},
    "training.unfreeze": {"type": "Gradual", "epochs": 1.0},
    "model.head.pool": "concat",
}
LORA = {"training.lora": {"type": "LoRA", "rank": 8, "alpha": 16.0}, "training.optimizer.layer_lr_decay": 1.0}
RATES = {"scratch": 1e-3, "plain": 2e-4, "ulmfit": 1e-3, "lora": 2e-3}
RECURRENT_RATES = {"ulmfit": 4e-3}  # as in the paper; a Transformer does not bear it


class Size(NamedTuple):
    """How long the stages are, and how large the networks."""

    corpus_steps: int
    texts_steps: int
    epochs: float
    settings: dict[str, Any]
    rates: dict[str, float] = RATES


SHORT = Size(corpus_steps=20, texts_steps=10, epochs=2.0, settings={
    "model.stack.depth": 2, "model.stack.width": 64, "data.tokenizer.vocab_size": 1000,
    "data.tokenizer.max_length": 64,
})  # fmt: skip
CPU = Size(corpus_steps=1000, texts_steps=200, epochs=2.0, settings={
    "model.stack.depth": 2, "model.stack.width": 64, "data.tokenizer.vocab_size": 2000,
    "data.tokenizer.max_length": 48,
}, rates={"scratch": 2e-3, "plain": 1e-3, "ulmfit": 2e-3, "lora": 4e-3})  # fmt: skip
FULL = Size(corpus_steps=5000, texts_steps=1500, epochs=10.0, settings={
    "model.stack.depth": 4, "model.stack.width": 384, "data.tokenizer.vocab_size": 8000,
    "data.tokenizer.max_length": 128,
})  # fmt: skip


def size_named(name: str) -> Size:
    return {"short": SHORT, "cpu": CPU, "full": FULL}[name]


def rows_of(path: Path) -> list[tuple[str, str]]:
    """Text and label of each line, `label text`."""
    with lzma.open(path, "rt", encoding="utf-8") as file:
        lines = [line.rstrip("\n").split(" ", 1) for line in file]
    return [(text, "positive" if label == "1" else "negative") for label, text in lines]


def write_rows(path: Path, rows: list[tuple[str, str]]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    return path


def write_data(source: Path, out: Path, labels: tuple[int, ...], seed: int) -> None:
    """The texts alone, the rows that validate and test, and as many labelled rows as asked for."""
    out.mkdir(parents=True, exist_ok=True)
    trained = rows_of(source / "stsa.binary.train.xz")
    (out / "texts.txt").write_text("\n".join(text for text, _ in trained) + "\n", encoding="utf-8")
    write_rows(out / "valid.csv", rows_of(source / "stsa.binary.dev.xz"))
    write_rows(out / "test.csv", rows_of(source / "stsa.binary.test.xz"))
    random.Random(seed).shuffle(trained)
    for count in labels:
        write_rows(out / f"labels-{count}.csv", trained[:count])


def language_models(model: str, asked: argparse.Namespace, size: Size, out: Path) -> Path:
    """The first two stages: a model of general text, then of the texts of the task."""
    common = {"training.seed": asked.seeds[0]}
    general = train(asked.corpus, "lm", model, out=out / "1-general", device=asked.device, steps=size.corpus_steps,
                    settings=size.settings | common)  # fmt: skip
    own = train(out.parent / "data" / "texts.txt", "lm", start=general.path, out=out / "2-texts", device=asked.device,
                steps=size.texts_steps, lr=5e-4, settings=common)  # fmt: skip
    return own.path


def classify(method: str, count: int, seed: int, start: Path, asked: argparse.Namespace, size: Size) -> Run:
    """The last stage, with `count` labels."""
    out = start.parent
    home = out.parent / "data"
    chosen: dict[str, Any] = {
        "data.split.valid_file": str(home / "valid.csv"), "data.split.test_file": str(home / "test.csv"),
        "training.seed": seed, "training.batch_size": 32 if count > 500 else 16,
    }  # fmt: skip
    chosen |= {"ulmfit": ULMFIT, "lora": LORA}.get(method, {"training.optimizer.layer_lr_decay": 1.0})
    epochs = size.epochs if count > 500 else 4 * size.epochs  # few labels make few steps an epoch
    fresh, rates = method == "scratch", size.rates | (RECURRENT_RATES if out.name.startswith("lstm") else {})
    return train(home / f"labels-{count}.csv", "classify", out.name if fresh else None, "label",
                 start=None if fresh else start, epochs=epochs, lr=rates[method], device=asked.device,
                 settings=chosen | (size.settings if fresh else {}), out=out / f"{method}-{count}-{seed}")  # fmt: skip


def measure(method: str, count: int, seed: int, start: Path, asked: argparse.Namespace, size: Size) -> dict[str, Any]:
    """One run of the last stage in figures."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    run = classify(method, count, seed, start, asked, size)
    memory = torch.cuda.max_memory_allocated() / 2**20 if torch.cuda.is_available() else None
    return {
        "model": start.parent.name, "method": method, "labels": count, "seed": seed, "size": asked.size,
        "test_accuracy": round(run.metrics["accuracy"], 4), "steps": run.facts["step"],
        "trained_parameters": trained_parameters(run), "optimizer_bytes": optimizer_bytes(run),
        "peak_rss_mib": round((peak() or 0) / 2**20, 1), "gpu_mib": None if memory is None else round(memory, 1),
        "seconds": run.facts["seconds"], "validation_accuracy": round(run.facts["best"]["value"], 4),
    }  # fmt: skip


def trained_parameters(run: Run) -> int:
    """Parameters that learned; without a table of layers all of them did."""
    path = run.path / "layers.json"
    if path.is_file():
        return sum(layer["trained"] for layer in json.loads(path.read_text())["layers"])
    return sum(p.numel() for p in run.folder.config().model.build(device="meta").parameters())


def optimizer_bytes(run: Run) -> int:
    """Bytes of what the optimizer keeps beside the parameters, in the last checkpoint."""
    last = max(run.folder.checkpoints.iterdir())
    entries = tensors.read_header(last / OPTIM_FILE)
    return sum(entry.stop - entry.start for name, entry in entries.items() if not name.startswith(ADAPTER))


class Here(Executor):
    """Runs what is submitted at once, in this process."""

    def submit(self, function: Callable[..., Any], /, *words: Any) -> Future[Any]:  # type: ignore[override]
        done: Future[Any] = Future()
        try:
            done.set_result(function(*words))
        except Exception as error:
            done.set_exception(error)
        return done


def executor(workers: int, size: str) -> Executor:
    """Processes that run side by side, each for one run, or this one."""
    if workers == 1 and size == "short":
        return Here()
    context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    return ProcessPoolExecutor(workers, context, end_with_parent, (os.getpid(),), max_tasks_per_child=1)


def write_line(line: dict[str, Any], path: Path | None) -> None:
    print(json.dumps(line), flush=True)
    if path is not None:
        there = path.is_file()
        with path.open("a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, line)
            if not there:
                writer.writeheader()
            writer.writerow(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder with stsa.binary.*.xz")
    parser.add_argument("--corpus", type=Path, required=True, help="a file of general text")
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--labels", type=int, nargs="+", default=list(LABELS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--size", choices=("short", "cpu", "full"), default="short", help="`full` needs a GPU")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("runs/ulmfit"))
    parser.add_argument("--csv", type=Path, help="add a line of figures for each run to this file")
    parser.add_argument("--workers", type=int, default=1, help="runs side by side, which changes their seconds alone")
    asked = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    size = size_named(asked.size)
    write_data(asked.data, asked.out / "data", tuple(asked.labels), seed=0)
    with executor(asked.workers, asked.size) as pool:
        stages = {pool.submit(language_models, model, asked, size, asked.out / model): model for model in asked.models}
        figures: list[Future[dict[str, Any]]] = []
        for stage in as_completed(stages):
            model, start = stages[stage], stage.result()
            # The cells of a recurrence are no linear layers, which LoRA adapts.
            methods = [method for method in asked.methods if method != "lora" or not model.startswith("lstm")]
            figures += [pool.submit(measure, method, count, seed, start, asked, size)
                        for seed in asked.seeds for count in asked.labels for method in methods]  # fmt: skip
        for done in as_completed(figures) if asked.workers > 1 else figures:
            if (error := done.exception()) is None:
                write_line(done.result(), asked.csv)
            else:  # the others go on
                print(error, file=sys.stderr)


if __name__ == "__main__":
    main()

"""Every kind of data from a file of 200 rows: trained on a CPU in seconds, and better than the trivial answer."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from anyformer.evaluation.metric_directions import better
from tests.cli import made
from tests.cli.trying import done, standing_in

SECONDS = 20.0

KINDS: dict[str, tuple[Callable[[Path], Any], list[str], str, str]] = {
    "text": (made.book, ["--steps", "20"], "lm", "loss"),
    "CSV": (made.reviews, ["--target", "label", "--steps", "40"], "classify", "accuracy"),
    "labels": (made.topics, ["--target", "labels", "--steps", "80"], "classify", "micro_f1"),
    "JSONL": (made.lines, ["--steps", "40"], "classify", "accuracy"),
    "CoNLL": (made.tagged, ["--steps", "40"], "tag", "span_f1"),
    "two files": (made.parallel, ["--steps", "60"], "translate", "bleu"),
    "TSV": (made.pairs, ["--steps", "60"], "translate", "bleu"),
    "table": (made.flowers, ["--target", "kind", "--steps", "60"], "classify", "accuracy"),
    "Parquet": (made.houses, ["--target", "price", "--steps", "80"], "regress", "rmse"),
    "images": (made.photos, ["--steps", "45", "--set", "data.images.randaugment=0"], "classify", "accuracy"),
    "mixed": (made.mixed, ["--target", "y", "--steps", "20"], "classify", "accuracy"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_of_200_rows_trains_and_beats_the_trivial_answer(kind: str, tmp_path: Path) -> None:
    make, words, task, metric = KINDS[kind]
    data = make(tmp_path)
    paths = data if isinstance(data, list) else [data]
    began, worked = time.perf_counter(), time.process_time()
    with standing_in(tmp_path):
        said = done("train", *(path.name for path in paths), *words, "--out", "run", "--json", "--progress", "none")
    wall, cpu = time.perf_counter() - began, time.process_time() - worked
    print(f"{kind}: {wall:.1f} s, {cpu:.1f} s of CPU")
    assert min(cpu, wall) < SECONDS, (cpu, wall)  # a shared machine may take longer by the clock

    found = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    ours, trivial = found["metrics"][found["split"]], found["baselines"]["trivial"]["metrics"]
    assert (found["task"], found["main"]) == (task, metric)
    assert better(metric, ours[metric], trivial[metric]), (ours, trivial)
    assert said.json["metrics"] == ours and said.json["status"] == "done" and said.json["task"] == task
    assert "skipped" not in said.err and ("200, all used" in said.err or task == "lm")


@pytest.mark.alone
def test_reversing_strings_is_learned_exactly(tmp_path: Path) -> None:
    """Strings of up to 12 symbols backwards: 99 % without a mistake, in two minutes of a CPU."""
    made.reversed_strings(tmp_path)
    places = [f"{side}.{part}" for side in ("encoder", "decoder")
              for part in ("embed", "stack.block", "stack.block.mixer", "stack.block.feed")]  # fmt: skip
    sets = [f"model.{place}.dropout=0" for place in [*places, "decoder.stack.block.cross"]]
    sets += ["data.tokenizer.kind=word", "objective.label_smoothing=0.0", "objective.num_beams=1",
             "training.batch_size=64", "training.optimizer.lr=1e-3", "training.threads=1"]  # fmt: skip
    worked = time.process_time()
    with standing_in(tmp_path):
        said = done("train", "reverse.tsv", "--out", "run", "--json", "--progress", "none", "--steps", "900",
                    *(word for text in sets for word in ("--set", text)))  # fmt: skip
    assert time.process_time() - worked < 120
    assert said.json["metrics"]["exact_match"] >= 0.99, said.json["metrics"]

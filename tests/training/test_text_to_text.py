"""Text to text: several tasks in one table, mixed by rates, judged one by one, asked for by name."""

from __future__ import annotations

import csv
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anyformer
from anyformer import UserError
from anyformer.data.mixing import MixedRows, mix_rows, mixing_rates
from anyformer.data.order import Order
from anyformer.data.settings import Mixture
from anyformer.evaluation.baseline_rows import RawRows
from anyformer.evaluation.text_baselines import copy_or_lead, lead
from tests.training.nursery import Nursery
from tests.training.test_resume import KILLED, expect
from tests.training.tiny import STREAM, differing, resume

# The three prompts of the lecture, and what they ask for.
PROMPTS = {
    "Translate EN-DE": ("This is good.", "Das ist gut."),
    "Summarize": ("state authorities dispatched emergency crews tuesday to survey the damage after an onslaught of "
                  "severe weather in mississippi. Schools stay closed.", "A storm in Attala caused 6 victims."),
    "Is this toxic": ("You look beautiful today!", "This is not toxic."),
}  # fmt: skip
WORDS = {"good": "gut", "bad": "schlecht", "new": "neu", "old": "alt"}


def rows_of_each() -> list[tuple[str, str, str]]:
    """The three prompts among others like them: 16 translations, 48 summaries, 24 judgements."""
    chance = random.Random(0)
    rows = [("Translate EN-DE", f"This is {a} and {b}.", f"Das ist {WORDS[a]} und {WORDS[b]}.")
            for a in WORDS for b in WORDS]  # fmt: skip
    places = [f"{what} {town}" for what in ("fire", "flood", "storm") for town in ("Rome", "Oslo", "Paris", "Cairo")]
    for place in places * 4:
        what, town = place.split()
        text = (
            f"state authorities dispatched {chance.randint(2, 9)} teams after a {what} in {town}. Schools stay closed."
        )
        rows.append(("Summarize", text, f"A {what} in {town}."))
    for kind, said in (("beautiful", "not "), ("lovely", "not "), ("stupid", ""), ("awful", "")):
        for who in ("sir", "madam", "friend", "dear", "all", "there"):
            rows.append(("Is this toxic", f"You look {kind} today {who} !", f"This is {said}toxic."))
    rows += [(task, *pair) for task, pair in PROMPTS.items()] * 6
    chance.shuffle(rows)
    return rows


def write_table(path: Path) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("task", "input", "target"), *rows_of_each()])
    return path


SETTINGS = {
    "training.threads": 1, "training.steps": 260, "data.tokenizer.kind": "word", "objective.num_beams": 1,
    "data.mixture.temperature": 2.0, "objective.label_smoothing": 0.0, "training.optimizer.lr": 3e-3,
    "model.encoder.stack.width": 48, "model.decoder.stack.width": 48, "training.batch_size": 32,
    "data.split.stratify": True,
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("mixture")
    table = write_table(place / "tasks.csv")
    made = anyformer.train([table], "translate", "transformer-base-tiny", out=place / "run", device="cpu",
                           progress="silent", settings=SETTINGS)  # fmt: skip
    return Path(made.path)


# ---------------------------------------------------------------- one model, three tasks


@pytest.mark.parametrize("task", PROMPTS)
def test_w17_the_three_prompts_run_through_one_model(task: str, run: Path) -> None:
    text, wanted = PROMPTS[task]
    model = anyformer.load(run)

    def alike(text: str) -> str:  # a tokenizer of words knows no blanks
        return "".join(text.split())

    assert alike(model.generate(f"{task}: {text}")) == alike(wanted)
    assert alike(model.predict([{"task": task, "input": text}])[0]) == alike(wanted)
    other = next(name for name in PROMPTS if name != task)
    # Control: it is the task that decides. The same input under another task is answered otherwise.
    assert alike(model.generate(f"{other}: {PROMPTS[other][0]}")) != alike(wanted)


def test_metrics_and_baselines_are_given_for_each_task(run: Path) -> None:
    found = json.loads((run / "evaluation.json").read_text())
    ours, trivial = found["metrics"][found["split"]], found["baselines"]["trivial"]
    for task in PROMPTS:
        for metric in ("bleu", "rouge_1", "rouge_2", "rouge_l", "exact_match"):
            assert f"{metric}.{task}" in ours and f"{metric}.{task}" in trivial["metrics"]
    assert "the first sentences of the source" in trivial["name"]
    assert ours["rouge_l.Summarize"] > trivial["metrics"]["rouge_l.Summarize"] > 0
    report = (run / "report.html").read_text()
    assert all(f"ROUGE-L of {task}" in report for task in PROMPTS)
    lines = json.loads((run / "data.json").read_text())["notes"]
    assert any(line.startswith("tasks    Is this toxic") for line in lines)


def test_rows_without_the_task_are_refused_by_name(run: Path) -> None:
    with pytest.raises(UserError, match="task"):
        anyformer.load(run).predict([{"input": "This is good."}])


# ---------------------------------------------------------------- rates


def test_rates_are_those_of_t5() -> None:
    """min(rows, cap) ** (1 / temperature), as shares; by hand for 900, 90 and 10 rows."""
    tasks = ["a"] * 900 + ["b"] * 90 + ["c"] * 10
    assert mixing_rates(tasks, Mixture()) == pytest.approx({"a": 0.9, "b": 0.09, "c": 0.01})
    roots = [900**0.5, 90**0.5, 10**0.5]
    wanted = {name: root / sum(roots) for name, root in zip("abc", roots, strict=True)}
    assert mixing_rates(tasks, Mixture(temperature=2.0)) == pytest.approx(wanted)
    assert mixing_rates(tasks, Mixture(cap=90)) == pytest.approx({"a": 90 / 190, "b": 90 / 190, "c": 10 / 190})
    assert mixing_rates(tasks, Mixture(weights=("c=9",)))["c"] == pytest.approx(90 / 1080)
    even = mixing_rates(tasks, Mixture(temperature=1e6))
    assert even == pytest.approx(dict.fromkeys("abc", 1 / 3), abs=1e-4)
    for wrong, why in ((("c",), "does not say task=factor"), (("c=0",), "does not say task=factor")):
        with pytest.raises(UserError, match=why):
            Mixture(weights=wrong)
    with pytest.raises(UserError, match="no training row has the task 'd'"):
        mixing_rates(tasks, Mixture(weights=("d=2",)))
    with pytest.raises(UserError, match="temperature"):
        Mixture(temperature=0.0)


def order_of(mixed: MixedRows | None, seed: int = 0) -> Order:
    return Order(100, 8, seed, mixed=mixed)


def test_an_epoch_has_the_rates_and_every_row_of_a_task_comes_as_often() -> None:
    tasks = ["a"] * 90 + ["b"] * 10
    mixed = mix_rows(tasks, Mixture(temperature=2.0))
    assert mixed is not None and mixed.counts == (75, 25)
    order = order_of(mixed)
    seen: Counter[int] = Counter()
    for epoch in range(36):
        rows = order.epoch(epoch)
        assert len(rows) == 100 and Counter(tasks[row] for row in rows) == {"a": 75, "b": 25}
        seen.update(rows.tolist())
    # 36 epochs take 2,700 of 90 rows and 900 of 10: each of them exactly as often as the others of its task.
    assert {seen[row] for row in range(90)} == {30} and {seen[row] for row in range(90, 100)} == {90}
    assert Counter(order_of(None).epoch(0).tolist()) == Counter(range(100))  # control: unmixed, every row comes once


def test_the_order_is_a_function_of_seed_and_step() -> None:
    mixed = mix_rows(["a"] * 70 + ["b"] * 30, Mixture(cap=10))
    far, again = order_of(mixed), order_of(mixed)
    wanted = [far.at(step)[0] for step in range(40)]
    for step in (39, 3, 17, 0, 26):  # asked in any order, by whoever resumes
        assert np.array_equal(again.at(step)[0], wanted[step])
    assert not np.array_equal(order_of(mixed, seed=1).at(3)[0], wanted[3])  # control


def test_a_mixture_that_was_killed_ends_in_the_same_bits(tmp_path: Path, nursery: Nursery) -> None:
    write_table(tmp_path / "tasks.csv")
    settings: dict[str, Any] = SETTINGS | {
        "training.steps": 8, "training.save_every": 3, "training.eval_every": 4, "data.mixture.cap": 20,
    }  # fmt: skip
    words = [word for path, value in settings.items() for word in ("--set", f"{path}={value}")]
    command = ["train", "tasks.csv", "--task", "translate", "--preset", "transformer-base-tiny", *STREAM, *words]
    expect(nursery, [*command, "--out", "whole"], tmp_path, 0)
    expect(nursery, [*command, "--out", "run"], tmp_path, KILLED, "kill@step:5")
    expect(nursery, resume("run"), tmp_path, 0)
    assert differing(tmp_path / "whole", tmp_path / "run") == []


def test_a_mixture_of_one_task_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("".join(f"text {n}\tanswer {n}\n" for n in range(60)))
    with pytest.raises(UserError, match="no column named task"):
        anyformer.train([tmp_path / "pairs.tsv"], "translate", "transformer-base-tiny", out=tmp_path / "run",
                        device="cpu", progress="silent", settings={"data.mixture.temperature": 2.0})  # fmt: skip


# ---------------------------------------------------------------- the lead baseline


def test_a_lead_is_as_long_as_what_is_usually_written() -> None:
    text = "One two three. Four five six seven! Eight nine? Ten."
    assert [lead(text, words) for words in (1, 3, 7, 99)] == [
        "One two three.", "One two three.", "One two three. Four five six seven!", text,
    ]  # fmt: skip
    assert lead("no end at all", 1) == "no end at all"


def test_short_answers_are_led_and_others_copied() -> None:
    sources = ["The storm came at night. It took roofs and trees. Nobody slept in the town."] * 4
    train = RawRows(sources=[*sources, *["Guten Tag"] * 4], tasks=["sum"] * 4 + ["tr"] * 4)
    truth = ["A storm came."] * 4 + ["Good day"] * 4
    test = RawRows(sources=[sources[0], "Guten Abend"], tasks=["sum", "tr"])
    name, said = copy_or_lead(train, truth, test)
    assert said == ["The storm came at night.", "Guten Abend"]
    assert name == "copying the source or the first sentences of the source"
    alone = RawRows(sources=["Guten Tag"] * 4)
    assert copy_or_lead(alone, ["Good day"] * 4, RawRows(sources=["x y"])) == ("copying the source", ["x y"])

"""What tasks answer, asked by the name of the task: short forms for tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from anyformer.data.sizes import Sizes
from anyformer.evaluation.answers import Answers
from anyformer.evaluation.baseline_rows import RawRows
from anyformer.presets import preset
from anyformer.slots import Network
from anyformer.tasks import find
from anyformer.tasks.task_evaluation import Baseline


def metrics(answers: Answers) -> dict[str, float]:
    return find(answers.task).metrics(answers)


def main_metric(task: str, multi: bool = False, tags: Iterable[str] = ()) -> str:
    return find(task).main_metric(multi=multi, labels=tuple(tags))


def notes(answers: Answers) -> list[str]:
    return find(answers.task).notes(answers)


def evaluation_facts(answers: Answers) -> dict[str, Any]:
    return find(answers.task).report_facts(answers)


def trivial(
    truth: Any, answers: Answers, train: RawRows | None = None, test: RawRows | None = None
) -> dict[str, float]:
    return find(answers.task).trivial_baseline(truth, answers, train or RawRows(), test or RawRows())[1]


def trivial_name(truth: Any, answers: Answers, train: RawRows | None = None, test: RawRows | None = None) -> str:
    return find(answers.task).trivial_baseline(truth, answers, train or RawRows(), test or RawRows())[0]


def strong(
    task: str, train: RawRows, truth: Any, test: RawRows, test_truth: Any, *, labels: list[str] | None = None,
    multi: bool = False, judged: Answers | None = None,
) -> Baseline:  # fmt: skip
    answers = judged or Answers(task, test_truth, test_truth, labels=labels, multi=multi)
    return Baseline(*find(task).strong_baseline(truth, answers, train, test), 0.0)


def baselines(answers: Answers, truth: Any, train: RawRows, test: RawRows) -> dict[str, Any]:
    task = find(answers.task)
    found = {"trivial": task.trivial_baseline, "strong": task.strong_baseline}
    return {role: Baseline(*learn(truth, answers, train, test), 0.0).facts() for role, learn in found.items()}


def fitted(spec: Network, name: str, task: str, sizes: Sizes) -> Network:
    return find(task).fit_network(spec, name, sizes)


def network(name: str, task: str, sizes: Sizes) -> Network:
    return fitted(preset(name), name, task, sizes)


def default_preset(task: str, sizes: Sizes, *, gpu: bool) -> str:
    return find(task).default_preset(sizes, gpu=gpu)

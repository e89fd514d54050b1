"""Intervals by bootstrap: of the right width, paired, quick, and of the metric that is reported."""

from __future__ import annotations

import time

import numpy as np
import pytest

from anyformer.evaluation.answers import Answers
from anyformer.evaluation.bootstrap import (
    Interval,
    RowSums,
    compare_rows,
    estimate_interval,
    mean_of_rows,
    relate,
    standard_error,
)
from anyformer.evaluation.row_sums import class_sums, label_set_sums, number_sums, tag_sums, text_sums
from anyformer.tasks import find

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("rows", [400, 50_000])
def test_the_interval_of_a_share_is_that_of_the_binomial(rows: int) -> None:
    """Below and above the number of rows from which on groups of them are drawn."""
    hits = np.random.default_rng(1).random(rows) < 0.8
    found, error = estimate_interval(mean_of_rows(hits.astype(float))), (0.8 * 0.2 / rows) ** 0.5
    assert found.value == pytest.approx(hits.mean())
    assert (found.high - found.low) / 2 == pytest.approx(1.96 * error, rel=0.15)
    assert standard_error(mean_of_rows(hits.astype(float))) == pytest.approx(error, rel=0.2)


def test_ninety_five_of_a_hundred_intervals_hold_the_truth() -> None:
    drawn = [estimate_interval(mean_of_rows((np.random.default_rng(seed).random(200) < 0.7).astype(float)))
             for seed in range(200)]  # fmt: skip
    assert 0.90 <= np.mean([one.low <= 0.7 <= one.high for one in drawn]) <= 0.99


def test_a_pair_is_told_apart_where_two_intervals_are_not() -> None:
    """One model is right wherever the other is, and on 2 % of the rows more: each interval alone is wider than that."""
    generator = np.random.default_rng(0)
    theirs = generator.random(1000) < 0.7
    ours = theirs | (generator.random(1000) < 0.05)
    first, second = mean_of_rows(ours.astype(float)), mean_of_rows(theirs.astype(float))
    found = compare_rows(first, second)
    assert not found.has_zero and relate("accuracy", found) == "better than"
    assert estimate_interval(first).low < estimate_interval(second).high  # control: unpaired, they overlap
    other = mean_of_rows((generator.random(1000) < 0.7).astype(float))
    assert relate("accuracy", compare_rows(second, other)) == "not told apart from"


@pytest.mark.parametrize("metric, said", [("rmse", "worse than"), ("accuracy", "better than")])
def test_more_is_better_or_worse_by_the_metric(metric: str, said: str) -> None:
    assert relate(metric, Interval(0.2, 0.1, 0.3)) == said


def test_neighbours_that_are_the_same_are_no_new_rows() -> None:
    """Each value stands ten times: drawn one by one they seem to be ten times as many."""
    values = np.repeat(np.random.default_rng(0).normal(size=100), 10)
    single = mean_of_rows(values)
    blocks = RowSums(single.values, single.combine, block=10)
    assert standard_error(blocks) == pytest.approx(np.repeat(values, 1).std() / 10, rel=0.2)
    assert standard_error(single) < 0.5 * standard_error(blocks)  # control


def classes() -> Answers:
    generator = np.random.default_rng(0)
    truth = generator.integers(0, 3, 300)
    logits = np.eye(3)[truth] + generator.normal(size=(300, 3))
    chances = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    truth[7] = -100  # a class that is not known
    return Answers("classify", truth, chances.argmax(1), chances, ["a", "b", "c"])


def label_sets() -> Answers:
    generator = np.random.default_rng(0)
    truth, chances = generator.random((200, 4)) < 0.3, generator.random((200, 4))
    return Answers("classify", truth.astype(int), (chances > 0.6).astype(int), chances, list("abcd"), multi=True)


def numbers() -> Answers:
    truth = np.random.default_rng(0).normal(size=(100, 2))
    truth[3, 1] = np.nan
    return Answers("regress", truth, truth * 0.9 + 0.1, labels=["x", "y"], scale=np.array([3.0, 0.5]))


def tags() -> Answers:
    truth = [["B-PER", "I-PER", "O"], ["O", "B-LOC"], ["O"]] * 20
    said = [["B-PER", "O", "O"], ["O", "B-LOC"], ["B-LOC"]] * 20
    return Answers("tag", truth, said, labels=["O", "B-PER", "I-PER", "B-LOC"])


def texts() -> Answers:
    truth = ["the cat sat on the mat today", "a dog runs in the green park", "no word of it is here at all"] * 5
    said = ["the cat sat on a mat today", "a dog runs in the park", "something else entirely was said"] * 5
    return Answers("translate", truth, said)


SUMS = [
    (classes, class_sums, ["accuracy", "balanced_accuracy", "macro_f1", "log_loss", "auc"]),
    (label_sets, label_set_sums, ["micro_f1", "macro_f1", "exact_match"]),
    (numbers, number_sums, ["rmse", "mae", "scaled_rmse"]),
    (tags, tag_sums, ["span_f1", "accuracy"]),
    (texts, text_sums, ["bleu", "rouge_l"]),
]


@pytest.mark.parametrize("made, sums, metric", [(made, sums, metric) for made, sums, names in SUMS for metric in names])
def test_the_sums_of_rows_make_the_metric_that_is_reported(made, sums, metric: str) -> None:  # type: ignore[no-untyped-def]
    answers = made()
    found = sums(answers, metric)
    assert found.value == pytest.approx(find(answers.task).metrics(answers)[metric], rel=1e-6)
    assert sums(answers, "perplexity") is None  # no function of sums over these rows
    interval = estimate_interval(found)
    assert interval.low <= interval.value <= interval.high and interval.low < interval.high


def test_the_difference_to_a_baseline_is_in_its_facts() -> None:
    answers, task = numbers(), find("regress")
    worse = task.metrics(Answers("regress", answers.truth, np.asarray(answers.truth) * 0 + 0.1, labels=["x", "y"]))
    found = task.compare(answers, worse)
    assert found is not None and found.high < 0 and relate("rmse", found) == "better than"
    assert task.compare(answers, dict(worse)) is None  # control: figures alone are of no rows


@pytest.mark.alone
def test_a_hundred_thousand_rows_take_no_time() -> None:
    ours, theirs = (mean_of_rows(np.random.default_rng(seed).random(100_000)) for seed in (0, 1))
    began = time.perf_counter()
    compare_rows(ours, theirs)
    assert time.perf_counter() - began < 3

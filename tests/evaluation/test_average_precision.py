"""Average precision: cases counted by hand, and figures that pycocotools 2.0.11 gives for the same boxes."""

from __future__ import annotations

import math

import numpy as np
import pytest

from anyformer.evaluation.average_precision import Objects, average_precision, found_objects, true_objects

pytestmark = pytest.mark.quick
BOX = [0.0, 0.0, 10.0, 10.0]
FAR = [50.0, 50.0, 60.0, 60.0]


def true(*boxes: list[float], kinds: list[int] | None = None, crowd: list[bool] | None = None) -> Objects:
    return Objects(np.array(boxes).reshape(-1, 4), np.array(kinds or [0] * len(boxes)),
                   crowd=None if crowd is None else np.array(crowd))  # fmt: skip


def said(*boxes: list[float], scores: list[float], kinds: list[int] | None = None) -> Objects:
    return Objects(np.array(boxes).reshape(-1, 4), np.array(kinds or [0] * len(boxes)), np.array(scores))


def test_all_found_and_nothing_found() -> None:
    assert average_precision([said(BOX, scores=[0.1])], [true(BOX)]).ap == 1
    assert average_precision([said(scores=[])], [true(BOX)]).ap == 0
    assert average_precision([said(FAR, scores=[0.9])], [true(BOX)]).ap == 0
    assert math.isnan(average_precision([said(BOX, scores=[0.9])], [true()]).ap)


def test_one_of_two_is_half_of_the_recalls() -> None:
    """Precision is 1 up to recall .5: 51 of the 101 recalls."""
    found = average_precision([said(BOX, scores=[0.9])], [true(BOX, FAR)])
    assert found.ap == pytest.approx(51 / 101)


def test_a_wrong_answer_before_the_right_one_halves_the_precision() -> None:
    wrong_first = average_precision([said(FAR, BOX, scores=[0.9, 0.8])], [true(BOX)])
    right_first = average_precision([said(FAR, BOX, scores=[0.7, 0.8])], [true(BOX)])
    assert wrong_first.ap == pytest.approx(0.5) and right_first.ap == 1


def test_an_object_is_found_once() -> None:
    twice = average_precision([said(BOX, BOX, scores=[0.9, 0.8])], [true(BOX, FAR)])
    assert twice.ap == pytest.approx(51 / 101)  # the second answer is wrong, after the recalls that count
    other = average_precision([said(BOX, BOX, FAR, scores=[0.9, 0.8, 0.7])], [true(BOX, FAR)])
    assert other.ap == pytest.approx((51 + 50 * 2 / 3) / 101)


def test_overlap_decides_the_level() -> None:
    """An overlap of .72 counts at .5, .55, .6, .65 and .7: half of the levels."""
    found = average_precision([said([0, 0, 10, 7.2], scores=[0.5])], [true(BOX)])
    assert found.ap == pytest.approx(0.5) and found.ap50 == 1 and found.ap75 == 0


def test_classes_and_images_are_kept_apart() -> None:
    found = average_precision([said(BOX, scores=[0.9], kinds=[1]), said(scores=[])], [true(BOX), true(BOX, kinds=[1])])
    assert found.ap == 0 and found.classes == {0: 0.0, 1: 0.0}
    right = average_precision([said(BOX, scores=[0.9], kinds=[1]), said(scores=[])],
                              [true(BOX, kinds=[1]), true(BOX, kinds=[0])])  # fmt: skip
    assert right.classes == {0: 0.0, 1: 1.0} and right.ap == 0.5


def test_what_is_found_in_a_crowd_is_not_wrong() -> None:
    crowd = true(BOX, [40, 40, 90, 90], crowd=[False, True])
    found = average_precision([said(FAR, BOX, scores=[0.9, 0.8])], [crowd])
    assert found.ap == 1
    assert average_precision([said(FAR, BOX, scores=[0.9, 0.8])], [true(BOX, [40, 40, 90, 90])]).ap < 0.5  # control


def drawn(seed: int) -> tuple[list[Objects], list[Objects]]:
    """Images with objects of three classes, some of them crowds, and answers that are more or less right."""
    rng = np.random.default_rng(seed)
    answers, truth = [], []
    for _ in range(6):
        count = int(rng.integers(0, 7))
        start = rng.uniform(0, 80, (count, 2))
        boxes = np.concatenate([start, start + rng.uniform(5, 60, (count, 2))], 1)
        kinds, crowd = rng.integers(0, 3, count), rng.random(count) < 0.15
        truth.append(Objects(boxes, kinds, crowd=crowd))
        near = np.concatenate([boxes + rng.normal(0, 2, boxes.shape), boxes + rng.normal(0, 6, boxes.shape)])
        far = rng.uniform(0, 80, (4, 2))
        every = np.concatenate([near, np.concatenate([far, far + rng.uniform(5, 50, (4, 2))], 1)])
        every[:, 2:] = np.maximum(every[:, 2:], every[:, :2] + 1)
        said_kinds = np.concatenate([kinds, kinds, rng.integers(0, 3, 4)])
        answers.append(Objects(every, said_kinds, np.round(rng.random(len(every)), 1)))
    return answers, truth


@pytest.mark.parametrize(
    ("seed", "ap", "ap50", "ap75"),
    [
        (0, 0.14076815340954138, 0.36202483072789304, 0.1159015901590159),
        (1, 0.2851889611556056, 0.5613526152561219, 0.28663217708251243),
        (2, 0.3050637629552429, 0.564845013913156, 0.2881675667566756),
    ],
)
def test_figures_are_those_of_the_challenge(seed: int, ap: float, ap50: float, ap75: float) -> None:
    found = average_precision(*drawn(seed))
    assert (found.ap, found.ap50, found.ap75) == pytest.approx((ap, ap50, ap75), abs=1e-12)


def test_answers_of_a_network_become_objects() -> None:
    logits = np.log(np.array([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]]))
    found = found_objects(logits, np.array([[0.5, 0.5, 0.5, 1.0], [0.1, 0.2, 0.2, 0.2]]), 40, 20)
    assert found.classes.tolist() == [0, 1] and found.scores.tolist() == pytest.approx([0.7, 0.3])
    assert found.boxes.tolist() == [pytest.approx([10, 0, 30, 20]), pytest.approx([0, 2, 8, 6])]
    assert true_objects(np.array([[1.0, 2, 3, 4]]), np.array([0])).boxes.tolist() == [[1, 2, 4, 6]]

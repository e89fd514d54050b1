"""Calibration against scikit-learn's curve and a count by hand."""

from __future__ import annotations

import numpy as np
import pytest

from anyformer.evaluation.calibration import of_classes, of_label_sets, reliability


def test_bins_are_those_of_scikit_learn():
    from sklearn.calibration import calibration_curve

    draw = np.random.default_rng(0)
    chance = draw.random(500)
    true = (draw.random(500) < chance**2).astype(int)
    share, mean = calibration_curve(true, chance, n_bins=10)
    ours = reliability(chance, true)
    assert ours.true == pytest.approx(share) and ours.said == pytest.approx(mean) and ours.count.sum() == 500


def test_the_error_is_the_weighted_gap():
    chance, true = np.array([0.05, 0.95, 0.95, 0.95]), np.array([0, 1, 1, 0])
    assert reliability(chance, true).error == pytest.approx(0.05 / 4 + 3 / 4 * (0.95 - 2 / 3))
    assert reliability(np.array([]), np.array([])).error == 0


def test_honest_probabilities_have_almost_no_error_and_exaggerated_ones_do():
    draw = np.random.default_rng(1)
    chance = draw.random(20_000)
    true = draw.random(20_000) < chance
    assert reliability(chance, true).error < 0.02
    assert reliability(np.where(chance > 0.5, 0.99, 0.01), true).error > 0.2  # control


def test_two_classes_many_classes_and_sets():
    chances = np.array([[0.2, 0.8], [0.7, 0.3]])
    assert of_classes(np.array([1, 0]), chances).count.tolist() == [0, 0, 1, 0, 0, 0, 0, 1, 0, 0]
    three = np.array([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]])
    binned = of_classes(np.array([0, 0]), three)
    assert binned.true[4] == 1 and binned.true[7] == 0
    assert of_label_sets(np.eye(2), chances).count.sum() == 4

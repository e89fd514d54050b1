"""Ramps are read by everybody: lightness goes one way, also for eyes without green cones."""

from __future__ import annotations

import numpy as np
import pytest

from anyformer.inspection.palette import RAMPS, STOPS

# Deuteranopia in linear RGB, severity 1.0 (Machado, Oliveira and Fernandes 2009, table 1).
DEUTERANOPIA = np.array(
    [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
)
WEIGHTS = np.array([0.2126, 0.7152, 0.0722])  # of relative luminance (WCAG 2.2)
JET = ("#000080", "#0000ff", "#00ffff", "#ffff00", "#ff0000", "#800000")
ONE = {"light": RAMPS["light"]["one"], "dark": RAMPS["dark"]["one"], "heat": STOPS["heat"]}


def luminance(stops: tuple[str, ...], matrix: np.ndarray) -> np.ndarray:
    """Relative luminance along a ramp (256,), as eyes see it whose cones `matrix` describes."""
    colours = np.array([[int(stop[i : i + 2], 16) for i in (1, 3, 5)] for stop in stops], float) / 255
    at = np.linspace(0, len(stops) - 1, 256)
    srgb = np.stack([np.interp(at, range(len(stops)), colours[:, channel]) for channel in range(3)], -1)
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    return np.clip(linear @ matrix.T, 0, 1) @ WEIGHTS


def is_monotone(values: np.ndarray) -> bool:
    steps = np.diff(values)
    return bool((steps > -1e-6).all() or (steps < 1e-6).all())


@pytest.mark.parametrize("eyes", [np.eye(3), DEUTERANOPIA], ids=["usual", "deuteranopia"])
@pytest.mark.parametrize("name", ONE)
def test_a_larger_number_is_darker_or_lighter_all_the_way(name, eyes):
    found = luminance(ONE[name], eyes)
    assert is_monotone(found)
    low, high = sorted((found[0], found[-1]))
    assert (high + 0.05) / (low + 0.05) > 10  # the ends are as far apart as text from its paper
    assert not is_monotone(luminance(JET, eyes))  # control


@pytest.mark.parametrize("eyes", [np.eye(3), DEUTERANOPIA], ids=["usual", "deuteranopia"])
@pytest.mark.parametrize("theme", RAMPS)
def test_both_sides_leave_the_middle_one_way_and_stay_apart(theme, eyes):
    found = luminance(RAMPS[theme]["two"], eyes)
    assert is_monotone(found[:128]) and is_monotone(found[128:])
    assert not is_monotone(found)  # control: the whole turns in the middle
    stops = np.array([[int(stop[i : i + 2], 16) for i in (1, 3, 5)] for stop in RAMPS[theme]["two"]]) / 255
    below, above = (eyes @ stops[i] ** 2.2 for i in (1, -2))
    assert np.abs(below - above).max() > 0.2  # blue and orange differ in what these eyes see

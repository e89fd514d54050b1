"""Temperatures and thresholds: what they are fitted to, and that they hold on rows they were not fitted on."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from anyformer.data.calibration import Calibration
from anyformer.data.preprocess import Preprocess
from anyformer.data.targets import Classes
from anyformer.errors import UserError
from anyformer.evaluation import calibration
from anyformer.evaluation.answers import Answers
from anyformer.evaluation.calibration import fit_label_temperatures, fit_temperature, probability_errors
from anyformer.tasks import find
from anyformer.training.calibrate import fit_calibration
from anyformer.training.settings import Training

pytestmark = pytest.mark.quick
TASK = find("classify")


def drawn(rows: int, classes: int, sureness: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Logits of a model that is `sureness` times too sure, and classes drawn by the true probabilities."""
    generator = np.random.default_rng(seed)
    logits = 2 * generator.normal(size=(rows, classes))
    chances = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    truth = (chances.cumsum(1) > generator.random((rows, 1))).argmax(1)
    return (sureness * logits).astype(np.float32), truth


def target(count: int, *, multi: bool = False) -> Preprocess:
    names = tuple(f"c{number}" for number in range(count))
    form = "list" if multi else "one"
    return Preprocess(task="classify", target=Classes(names=("y",), labels=names, counts=(1,) * count, form=form))


@pytest.mark.parametrize("sureness", [0.5, 1.0, 3.0])
def test_the_temperature_undoes_how_much_too_sure_a_model_is(sureness: float) -> None:
    assert fit_temperature(*drawn(4000, 4, sureness)) == pytest.approx(sureness, rel=0.08)


def test_the_temperature_is_that_of_an_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "HOT", 1e6)  # torch has no prior
    logits, truth = drawn(500, 3, 2.0)
    scale = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([scale], max_iter=200, tolerance_grad=1e-12)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(torch.from_numpy(logits).double() / scale.exp(), torch.tensor(truth))
        loss.backward()
        return loss

    optimizer.step(closure)  # type: ignore[arg-type]
    assert fit_temperature(logits, truth) == pytest.approx(scale.detach().exp().item(), rel=1e-3)


def test_few_rows_leave_it_near_one() -> None:
    """Four rows that happen to be all right would make a model as sure as can be."""
    logits = np.tile(np.array([[2.0, 0.0]], np.float32), (4, 1))
    assert 0.7 < fit_temperature(logits, np.zeros(4, int)) <= 1
    assert fit_temperature(np.tile(logits, (500, 1)), np.zeros(2000, int)) < 0.5  # control: many say so


def test_each_label_of_a_set_has_its_own() -> None:
    generator = np.random.default_rng(0)
    logits = 2 * generator.normal(size=(3000, 2))
    truth = (generator.random((3000, 2)) < 1 / (1 + np.exp(-logits))).astype(int)
    found = fit_label_temperatures(logits * [1.0, 4.0], truth)
    assert found.tolist() == pytest.approx([1.0, 4.0], rel=0.12)


def answers_of(logits: np.ndarray, truth: np.ndarray, preprocess: Preprocess) -> Answers:
    return TASK.read_logits(torch.from_numpy(logits), truth, preprocess)  # type: ignore[attr-defined]


def test_rows_that_were_not_fitted_on_gain_and_no_answer_changes() -> None:
    preprocess = target(4)
    valid, test = (answers_of(*drawn(800, 4, 3.0, seed), preprocess) for seed in (0, 1))
    fitted = fit_calibration(TASK, valid, preprocess, Training(), "accuracy")
    assert fitted is not None and fitted.calibration.threshold is None
    after = TASK.calibrate(test, fitted.calibration)
    before, now = probability_errors(test), probability_errors(after)
    assert now["log_loss"] < 0.7 * before["log_loss"] and now["calibration_error"] < 0.5 * before["calibration_error"]
    assert np.array_equal(test.predicted, after.predicted)
    read = answers_of(test.logits, test.truth, preprocess.replace(calibration=fitted.calibration))  # type: ignore[arg-type]
    assert np.array_equal(read.probability, after.probability)  # type: ignore[arg-type]


def uneven(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Two classes, one in eight is the second, told apart somewhat; calibrated."""
    generator = np.random.default_rng(seed)
    logit = generator.normal(size=rows) * 1.5 - 2.5
    truth = (generator.random(rows) < 1 / (1 + np.exp(-logit))).astype(int)
    return np.stack([np.zeros(rows), logit], 1).astype(np.float32), truth


def test_a_threshold_is_chosen_for_the_metric_that_is_asked_for() -> None:
    preprocess = target(2)
    valid, test = (answers_of(*uneven(2000, seed), preprocess) for seed in (0, 1))
    fitted = fit_calibration(TASK, valid, preprocess, Training(), "balanced_accuracy")
    assert fitted is not None and fitted.calibration.threshold is not None and fitted.calibration.threshold < 0.3
    said = TASK.metrics(TASK.calibrate(test, fitted.calibration))
    assert said["balanced_accuracy"] > TASK.metrics(test)["balanced_accuracy"] + 0.05
    assert any("in place of 0.5" in line for line in fitted.lines())
    plain = fit_calibration(TASK, valid, preprocess, Training(), "accuracy")
    assert plain is not None and plain.calibration.threshold is None  # control: calibrated, 0.5 is best for it
    assert plain.gain is not None and plain.gain.has_zero
    off = fit_calibration(TASK, valid, preprocess, Training(threshold=None), "balanced_accuracy")
    asked = fit_calibration(TASK, valid, preprocess, Training(threshold=0.2), "accuracy")
    assert off is not None and off.calibration.threshold is None
    assert asked is not None and asked.calibration.threshold == 0.2


def test_noise_chooses_no_threshold() -> None:
    """On rows where nothing can be gained, the best of fifty thresholds seems to: halves of the rows tell."""
    preprocess, taken = target(2), 0
    for seed in range(20):
        generator = np.random.default_rng(seed)
        logits = np.stack([np.zeros(200), generator.normal(size=200)], 1).astype(np.float32)
        chances = 1 / (1 + np.exp(-logits[:, 1]))
        truth = (generator.random(200) < chances).astype(int)
        fitted = fit_calibration(TASK, answers_of(logits, truth, preprocess), preprocess, Training(), "accuracy")
        taken += fitted is not None and fitted.calibration.threshold is not None
    assert taken <= 2


def test_label_sets_have_a_threshold_for_f1() -> None:
    generator = np.random.default_rng(0)
    logits = (1.5 * generator.normal(size=(1500, 3)) - 2).astype(np.float32)
    truth = (generator.random((1500, 3)) < 1 / (1 + np.exp(-logits))).astype(np.float32)
    preprocess = target(3, multi=True)
    answers = answers_of(logits, truth, preprocess)
    fitted = fit_calibration(TASK, answers, preprocess, Training(), "micro_f1")
    assert fitted is not None and len(fitted.calibration.temperature) == 3
    assert fitted.calibration.threshold is not None and fitted.calibration.threshold < 0.45
    assert TASK.metrics(TASK.calibrate(answers, fitted.calibration))["micro_f1"] > TASK.metrics(answers)["micro_f1"]


def test_too_few_rows_and_bad_settings() -> None:
    preprocess = target(2)
    assert fit_calibration(TASK, answers_of(*uneven(10, 0), preprocess), preprocess, Training(), "accuracy") is None
    for bad in ({"threshold": 1.5}, {"temperature": (0.0,)}):
        with pytest.raises(UserError, match="threshold|temperature"):
            Calibration(**bad)
    with pytest.raises(UserError, match="threshold"):
        Training(threshold=2.0)

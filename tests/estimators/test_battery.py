"""scikit-learn's own battery of checks, on every estimator that takes a matrix."""

from __future__ import annotations

from typing import Any

import pytest
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import check_estimator

import anyformer
from tests.estimators.small import FIT

MATRICES = ["TabularClassifier", "TabularRegressor", "MixedClassifier", "MixedRegressor"]
LISTS = ["TextClassifier", "TextRegressor", "ImageClassifier", "TokenTagger", "Translator", "LanguageModel"]

# Every check that may be left out, and why. None is left out because it fails.
SKIPPED = {
    "check_array_api_input": "runs only with SCIPY_ARRAY_API=1 set before scipy is imported",
    "check_classifier_data_not_an_array": "its second half needs pandas",
    "check_regressor_data_not_an_array": "its second half needs pandas",
}
LEAST = 45  # checks that must have run, so that a battery that shrinks is noticed

# Those that fit nothing, for estimators of lists, whose X the battery cannot make.
PLAIN = [
    "check_estimator_cloneable",
    "check_estimator_tags_renamed",
    "check_valid_tag_types",
    "check_estimator_repr",
    "check_no_attributes_set_in_init",
    "check_do_not_raise_errors_in_init_or_set_params",
    "check_mixin_order",
    "check_parameters_default_constructible",
    "check_get_params_invariance",
    "check_set_params",
]


@pytest.mark.parametrize("name", MATRICES)
def test_the_battery(name: str) -> None:
    results = check_estimator(getattr(anyformer, name)(**FIT), on_skip=None, on_fail=None)
    by: dict[str, list[Any]] = {}
    for result in results:
        by.setdefault(result["status"], []).append(result)
    failed = [f"{result['check_name']}: {result['exception']!r}" for result in by.pop("failed", [])]
    assert not failed, "\n".join(failed)
    assert {result["check_name"] for result in by.pop("skipped", [])} <= SKIPPED.keys()
    assert len(by.pop("passed")) >= LEAST and not by


def test_few_checks_are_left_out() -> None:
    assert len(SKIPPED) <= 5 and all(SKIPPED.values())


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("check", PLAIN)
def test_what_needs_no_fit(name: str, check: str) -> None:
    getattr(estimator_checks, check)(name, getattr(anyformer, name)())


def test_control_the_battery_sees_a_lapse(monkeypatch: pytest.MonkeyPatch) -> None:
    """An estimator whose answer depends on the rows beside it is told off."""
    kind = anyformer.TabularRegressor
    honest = kind.predict
    monkeypatch.setattr(kind, "predict", lambda self, X: honest(self, X) + len(X))
    with pytest.raises(AssertionError, match="subset"):
        estimator_checks.check_methods_subset_invariance("TabularRegressor", kind(**FIT | {"steps": 2}))

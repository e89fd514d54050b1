"""SQuAD's exact match and F1, on examples worked by hand after the published evaluation."""

from __future__ import annotations

import pytest

from anyformer.evaluation.answer_baselines import answer_by_words, learn_words, usual_answer
from anyformer.evaluation.answer_scores import answer_metrics, best_scores, normalise_answer

# predicted, right answers, exact match, F1
WORKED = [
    ("Denver Broncos", ["Denver Broncos", "The Denver Broncos"], 1, 1),
    ("the Broncos", ["Denver Broncos"], 0, 2 / 3),  # 1 of 1 said, 1 of 2 wanted
    ("in the city of Paris, France", ["Paris"], 0, 1 / 3),  # "in city of paris france": 1 of 5 and 1 of 1
    ("10-11", ["1011"], 1, 1),  # punctuation is taken out, not blanked
    ("a man, a plan", ["man plan plan"], 0, 0.8),  # words are counted as often as they come: 2 of 2, 2 of 3
    ("An  Answer ", ["answer"], 1, 1),
    ("", [], 1, 1),  # no answer, and none given
    ("Paris", [], 0, 0),
    ("", ["Paris"], 0, 0),
    ("the", ["a"], 1, 1),  # nothing is left of either: the same as no answer
    ("anthem theatre", ["them atre"], 0, 0),  # articles are words, not letters
    ("12 May", ["May 12"], 0, 1),  # F1 does not see order
]


@pytest.mark.parametrize(("said", "right", "exact", "f1"), WORKED)
def test_worked_examples(said: str, right: list[str], exact: float, f1: float) -> None:
    assert best_scores(said, right) == pytest.approx((exact, f1))


def test_metrics_are_means_and_apart_where_some_have_no_answer() -> None:
    said, right = [row[0] for row in WORKED], [row[1] for row in WORKED]
    found = answer_metrics(said, right)
    assert found["exact_match"] == pytest.approx(sum(row[2] for row in WORKED) / len(WORKED))
    assert found["f1"] == pytest.approx(sum(row[3] for row in WORKED) / len(WORKED))
    # three have no answer in words: two questions without any, and "a", of which nothing is left
    assert found["unanswered_accuracy"] == pytest.approx(2 / 3)
    assert found["answered_exact_match"] == pytest.approx(3 / 9)
    assert answer_metrics([], []) == {} and "unanswered_accuracy" not in answer_metrics(["x"], [["x"]])


def test_normalising_keeps_what_is_no_ascii_punctuation() -> None:
    assert normalise_answer("Zoë’s «café» — 5°") == "zoë’s «café» — 5°"


def test_the_baseline_takes_words_of_the_sentence_that_is_asked_about() -> None:
    contexts = ["Anna lives in Oslo. Ben lives in Rome.", "Eva lives in Oslo. Ida lives in Paris."]
    known = learn_words(contexts, [["Oslo"], ["Paris"]])
    assert answer_by_words(known, "Where does Ben live?", "Anna lives in Paris. Ben lives in Oslo.") == "Oslo"
    assert answer_by_words(known, "Where does Anna live?", "Anna lives in Paris. Ben lives in Oslo.") == "Paris"
    assert answer_by_words(known, "Where?", "") == ""
    assert usual_answer([["Rome"], ["Oslo"], [], ["Oslo", "Rome"]]) == "Oslo" and usual_answer([[], ["Oslo"], []]) == ""

"""Metrics equal those of scikit-learn, of sacreBLEU and of counting by hand."""

from __future__ import annotations

import itertools
import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anyformer.evaluation import metrics as module
from anyformer.evaluation import text_scores
from anyformer.evaluation.answers import Answers
from anyformer.evaluation.metric_directions import better, direction, gain
from anyformer.evaluation.spans import are_spans, span_counts, spans
from anyformer.evaluation.text_scores import bleu_chrf, common_words, rouge_l, rouge_n, row_scores
from anyformer.tasks import translate
from tests.tasks_by_name import main_metric, metrics, notes

CASES = [(seed, classes) for seed in range(4) for classes in (2, 3, 7)]


def classified(seed: int, classes: int, rows: int = 200, kind=np.float64) -> Answers:
    draw = np.random.default_rng(seed)
    scores = np.round(draw.normal(size=(rows, classes)), 1)  # rounded: ties are where AUC goes wrong
    truth = np.where(draw.random(rows) < 0.5, scores.argmax(1), draw.integers(0, classes, rows))
    chances = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    return Answers("classify", truth, chances.argmax(1), chances.astype(kind), [f"c{i}" for i in range(classes)])


@pytest.mark.quick
@pytest.mark.parametrize("seed, classes", CASES)
def test_classes_as_scikit_learn_counts_them(seed, classes):
    from sklearn import metrics as theirs

    for kind in (np.float64, np.float32):
        one = classified(seed, classes, kind=kind)
        score = one.probability[:, 1] if classes == 2 else one.probability
        expected = {
            "accuracy": theirs.accuracy_score(one.truth, one.predicted),
            "balanced_accuracy": theirs.balanced_accuracy_score(one.truth, one.predicted),
            "macro_f1": theirs.f1_score(one.truth, one.predicted, average="macro"),
            "auc": theirs.roc_auc_score(one.truth, score, multi_class="ovr"),
            "log_loss": theirs.log_loss(one.truth, one.probability),
        }
        ours = metrics(one)
        assert list(ours) == list(expected)
        assert ours == pytest.approx(expected, rel=1e-6 if kind == np.float32 else 1e-12)


def test_a_class_nobody_has_and_a_class_nobody_said():
    from sklearn.metrics import balanced_accuracy_score, f1_score

    truth, predicted = np.array([0, 0, 2, 2, 2]), np.array([0, 3, 2, 2, 0])
    ours = metrics(Answers("classify", truth, predicted))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # theirs warns of the class that is only said
        expected = balanced_accuracy_score(truth, predicted), f1_score(truth, predicted, average="macro")
    assert (ours["balanced_accuracy"], ours["macro_f1"]) == pytest.approx(expected)
    assert "auc" not in ours  # no probabilities, no AUC


def test_one_class_has_no_auc_and_says_so():
    one = Answers("classify", np.zeros(4, int), np.zeros(4, int), np.full((4, 2), 0.5))
    assert "auc" not in metrics(one) and "one class" in notes(one)[0]
    assert notes(classified(0, 2)) == []


def test_certain_and_wrong_is_a_large_but_finite_loss():
    one = Answers("classify", np.array([0]), np.array([1]), np.array([[0.0, 1.0]]))
    assert 30 < metrics(one)["log_loss"] < 40


def test_rows_without_a_known_class_do_not_count():
    one = classified(0, 3)
    more = Answers("classify", np.append(one.truth, -100), np.append(one.predicted, 0),
                   np.vstack([one.probability, one.probability[:1]]))  # fmt: skip
    assert metrics(more) == metrics(one)


@pytest.mark.parametrize("seed", range(4))
def test_label_sets_as_scikit_learn_counts_them(seed):
    from sklearn import metrics as theirs

    draw = np.random.default_rng(seed)
    chances = draw.random((150, 5))
    truth = (draw.random((150, 5)) < chances).astype(int)
    truth[:, 4] = 0  # nobody has this label: no AUC, F1 0
    one = Answers("classify", truth, (chances > 0.5).astype(int), chances, multi=True)
    expected = {
        "micro_f1": theirs.f1_score(truth, one.predicted, average="micro", zero_division=0),
        "macro_f1": theirs.f1_score(truth, one.predicted, average="macro", zero_division=0),
        "exact_match": theirs.accuracy_score(truth, one.predicted),
        "auc": theirs.roc_auc_score(truth[:, :4], chances[:, :4]),
    }
    ours = metrics(one)
    assert list(ours) == list(expected) and ours == pytest.approx(expected)


@pytest.mark.quick
@pytest.mark.parametrize("outputs", [None, 1, 3])
def test_numbers_as_scikit_learn_counts_them(outputs):
    from sklearn import metrics as theirs

    draw = np.random.default_rng(1)
    shape = 90 if outputs is None else (90, outputs)
    truth = draw.normal(size=shape) * 5 + 2
    predicted = truth + draw.normal(size=shape)
    ours = metrics(Answers("regress", truth, predicted, labels=["a", "b", "c"] if outputs == 3 else None))
    expected = {
        "rmse": theirs.root_mean_squared_error(truth, predicted),
        "mae": theirs.mean_absolute_error(truth, predicted),
        "r2": theirs.r2_score(truth, predicted),
    }
    assert list(ours)[:3] == list(expected)
    assert {name: ours[name] for name in expected} == pytest.approx(expected)
    if outputs == 3:
        assert ours["rmse.b"] == pytest.approx(theirs.root_mean_squared_error(truth[:, 1], predicted[:, 1]))


@pytest.mark.quick
def test_of_several_numbers_each_counts_by_its_own_deviation():
    """A price and a share: the mean of their errors is the price's alone, and the share could be anything."""
    draw = np.random.default_rng(2)
    truth = np.stack([draw.normal(size=500) * 1e6, draw.normal(size=500)], 1)
    good, bad = truth + [2e5, 0.1], truth + [1e5, 9.0]
    ours, theirs = (
        metrics(Answers("regress", truth, said, labels=["price", "share"], scale=np.array([1e6, 1.0])))
        for said in (good, bad)
    )
    assert next(iter(ours)) == main_metric("regress", tags=["price", "share"]) == "scaled_rmse"
    assert ours["scaled_rmse"] == pytest.approx(0.15) and theirs["scaled_rmse"] == pytest.approx(4.55)
    assert ours["rmse.share"] == pytest.approx(0.1) and theirs["rmse.price"] == pytest.approx(1e5)
    assert better("scaled_rmse", ours["scaled_rmse"], theirs["scaled_rmse"])
    # The control: in the units of the file the prediction that knows nothing of the share is the better one.
    assert better("rmse", theirs["rmse"], ours["rmse"])
    assert main_metric("regress", tags=["price"]) == "rmse"
    assert "scaled_rmse" not in metrics(Answers("regress", truth[:, 0], good[:, 0], labels=["price"]))


def test_missing_numbers_do_not_count_and_constant_truth_has_an_r2():
    truth = np.array([[1.0, np.nan], [2.0, 3.0], [3.0, 4.0]])
    ours = metrics(Answers("regress", truth, np.nan_to_num(truth) + np.array([[0.0, 1.0]])))
    assert ours["rmse.0"] == 0 and ours["rmse.1"] == pytest.approx(1.0)
    assert metrics(Answers("regress", np.ones(3), np.ones(3)))["r2"] == 1
    assert metrics(Answers("regress", np.ones(3), np.zeros(3)))["r2"] == 0
    assert "r2" not in metrics(Answers("regress", np.ones(1), np.zeros(1)))


def test_language_models_in_nats_and_in_bits():
    ours = metrics(Answers("lm", nats=200 * math.log(2), tokens=100, bytes=50))
    assert ours == pytest.approx({"loss": 2 * math.log(2), "perplexity": 4.0, "bits_per_byte": 4.0})
    assert math.isfinite(metrics(Answers("lm", nats=1e9, tokens=1))["perplexity"])
    assert metrics(Answers("lm")) == {}


# ---------------------------------------------------------------- spans

TAGS = ["O", "B-x", "I-x", "E-x", "S-x", "B-y", "I-y"]
sentences = st.lists(st.sampled_from(TAGS), max_size=7)


def begins(tags, at):
    """Whether a span begins at this word, said word by word."""
    if tags[at] == "O":
        return False
    before = tags[at - 1] if at else "O"
    return tags[at][0] in "BS" or before == "O" or before[0] in "ES" or before[2:] != tags[at][2:]


def brute(tags):
    """Spans by trying every pair of ends: begins at the first word, at no later one, and cannot be longer."""
    found = []
    for start, end in itertools.combinations(range(len(tags) + 1), 2):
        inside = range(start + 1, end)
        whole = begins(tags, start) and all(tags[i] != "O" and not begins(tags, i) for i in inside)
        longest = end == len(tags) or tags[end] == "O" or begins(tags, end)
        if whole and longest:
            found.append((start, end, tags[start][2:]))
    return found


@given(sentences)
@settings(max_examples=300, deadline=None, derandomize=True)
def test_spans_are_those_found_by_trying_all_ends(tags):
    assert spans(tags) == sorted(brute(tags))


@given(st.lists(st.tuples(sentences, sentences), max_size=4))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_span_f1_is_a_count_of_equal_triples(pairs):
    cut = [(a[: min(len(a), len(b))], b[: min(len(a), len(b))]) for a, b in pairs]
    true = {(i, *span) for i, (a, _) in enumerate(cut) for span in brute(a)}
    said = {(i, *span) for i, (_, b) in enumerate(cut) for span in brute(b)}
    ours = metrics(Answers("tag", [a for a, _ in cut], [b for _, b in cut], labels=TAGS))
    if not any(a for a, _ in cut):
        assert ours == {}
        return
    assert ours["span_precision"] == pytest.approx(len(true & said) / len(said) if said else 0)
    assert ours["span_recall"] == pytest.approx(len(true & said) / len(true) if true else 0)
    assert ours["span_f1"] == pytest.approx(2 * len(true & said) / (len(true) + len(said)) if true or said else 0)
    assert sum(both for _, _, both in span_counts([a for a, _ in cut], [b for _, b in cut]).values()) == len(
        true & said
    )


def test_plain_tags_have_macro_f1_and_a_cut_sentence_is_wrong_where_it_was_cut():
    from sklearn.metrics import f1_score

    ours = metrics(Answers("tag", [["N", "V", "N"], ["D"]], [["N", "N", "N"], ["D"]]))
    assert ours["macro_f1"] == pytest.approx(f1_score(list("NVND"), list("NNND"), average="macro"))
    assert metrics(Answers("tag", [["N", "V", "N"]], [["N"]]))["accuracy"] == pytest.approx(1 / 3)
    assert not are_spans(["NN", "VB"]) and not are_spans(["O"]) and are_spans(["B", "I", "O"])


# ---------------------------------------------------------------- texts


def longest(a, b):
    """The longest common subsequence by the textbook table."""
    table = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, j in itertools.product(range(len(a)), range(len(b))):
        table[i + 1][j + 1] = table[i][j] + 1 if a[i] == b[j] else max(table[i][j + 1], table[i + 1][j])
    return table[-1][-1]


texts = st.lists(st.sampled_from("abcd"), max_size=12)


@given(texts, texts)
@settings(max_examples=300, deadline=None, derandomize=True)
def test_rouge_l_is_the_longest_common_subsequence(a, b):
    assert common_words(a, b) == longest(a, b)
    total = len(a) + len(b)
    assert rouge_l(a, b) == pytest.approx(2 * longest(a, b) / total if total else 0)


def test_rouge_of_known_texts():
    assert rouge_n("the cat sat".split(), "the the cat".split(), 1) == pytest.approx(2 / 3)
    assert rouge_n("the cat sat".split(), "the the cat".split(), 2) == pytest.approx(1 / 2)
    one = metrics(Answers("translate", [["x y", "The cat!"], ["b"]], ["the cat", "c"]))
    assert one["rouge_1"] == 0.5 and one["rouge_2"] == 0.5 and one["exact_match"] == 0


def test_bleu_and_chrf_are_those_of_sacrebleu():
    import sacrebleu

    said = ["the cat sat on the mat .", "a dog barked loudly at night"]
    true = [["the cat sat on a mat .", "a cat was on the mat ."], ["the dog barked loudly at night"]]
    ours = metrics(Answers("translate", true, said))
    streams = [[one[0] for one in true], [true[0][1], None]]
    assert list(ours)[:2] == ["bleu", "chrf"]
    assert ours["bleu"] == sacrebleu.corpus_bleu(said, streams).score
    assert ours["chrf"] == sacrebleu.corpus_chrf(said, streams).score
    assert "tok:13a" in bleu_chrf(said, true)[2]
    assert row_scores(["a b", "a"], ["a b", "b"]) == [1.0, 0.0]


def test_without_sacrebleu_the_rest_remains_and_a_note_says_why(monkeypatch):
    for where in (module, text_scores, translate):
        monkeypatch.setattr(where, "bleu_available", lambda: False)
    one = Answers("translate", ["a b"], ["a b"])
    ours = metrics(one)
    assert "bleu" not in ours and next(iter(ours)) == main_metric("translate") == "rouge_l"
    assert "sacrebleu" in notes(one)[0]


# ---------------------------------------------------------------- the first is the main one


@pytest.mark.quick
def test_the_first_metric_is_the_main_one():
    cases = [
        (Answers("lm", nats=1.0, tokens=1, bytes=1), ()),
        (classified(0, 2), ()),
        (Answers("classify", np.eye(2), np.eye(2), multi=True), ()),
        (Answers("regress", np.arange(3.0), np.arange(3.0)), ()),
        (Answers("tag", [["O", "B-x"]], [["O", "O"]]), ("O", "B-x")),
        (Answers("tag", [["N"]], [["V"]]), ("N", "V")),
        (Answers("translate", ["a"], ["a"]), ()),
    ]
    for one, tags in cases:
        assert next(iter(metrics(one))) == main_metric(one.task, one.multi, tags)
        assert all(type(value) is float for value in metrics(one).values())


def test_direction_decides_what_is_better():
    assert direction("bits_per_byte") == direction("mae.x") == "min" and direction("bleu") == direction("r2") == "max"
    assert better("rmse", 1.0, 2.0) and not better("rmse", 2.0, 1.0) and better("auc", 0.9, 0.8)
    assert not better("rmse", math.nan, 1.0) and better("rmse", 1.0, math.nan)
    assert gain("rmse", 1.0, 3.0) == 2.0 and gain("rmse", 3.0, 1.0) == -2.0 and gain("auc", 0.75, 0.5) == 0.25

"""Baselines: the trivial ones are what they say, the strong ones learn what is there, and the same twice."""

from __future__ import annotations

import builtins
import math
from dataclasses import replace

import numpy as np
import pytest

from anyformer.evaluation import learners
from anyformer.evaluation.answers import Answers
from anyformer.evaluation.average_precision import Objects
from anyformer.evaluation.baseline_rows import RawRows, sample_rows
from anyformer.evaluation.features import codes, pixels
from anyformer.evaluation.translation_table import ROUNDS, word_table
from anyformer.tasks import language
from tests.tasks_by_name import baselines, strong, trivial, trivial_name

ROWS, TRAIN = 400, 300


def halves(rows: RawRows) -> tuple[RawRows, RawRows]:
    return rows.take(np.arange(TRAIN)), rows.take(np.arange(TRAIN, ROWS))


def texts(seed: int = 0) -> tuple[RawRows, np.ndarray]:
    draw = np.random.default_rng(seed)
    truth = draw.integers(0, 3, ROWS)
    shared, own = ["the", "a", "of", "it"], [["good", "fine"], ["bad", "poor"], ["so", "medium"]]
    made = [" ".join([*draw.choice(shared, 6), *draw.choice(own[c], 1), *draw.choice(shared, 2)]) for c in truth]
    return RawRows(texts=made), truth


def table(seed: int = 0) -> tuple[RawRows, np.ndarray]:
    draw = np.random.default_rng(seed)
    numbers = draw.normal(size=(ROWS, 3))
    numbers[draw.random((ROWS, 3)) < 0.1] = np.nan
    categories = draw.choice(np.array(["red", "green", "", None], object), (ROWS, 2))
    truth = np.nan_to_num(numbers[:, 0]) ** 2 + 2 * (categories[:, 0] == "red") + 0.1 * draw.normal(size=ROWS)
    return RawRows(numbers=numbers, categories=categories), truth


def images(seed: int = 0) -> tuple[RawRows, np.ndarray]:
    draw = np.random.default_rng(seed)
    truth = draw.integers(0, 2, ROWS)
    made = draw.integers(0, 120, (ROWS, 20, 20, 3))
    made[truth == 1, :10] += 60
    return RawRows(images=made.astype(np.uint8)), truth


def judged(task: str, rows: RawRows, truth: np.ndarray, multi: bool = False) -> tuple[dict, dict, str]:
    train, test = halves(rows)
    answers = Answers(task, truth[TRAIN:], truth[TRAIN:], multi=multi)
    found = strong(task, train, truth[:TRAIN], test, truth[TRAIN:], multi=multi)
    again = strong(task, train, truth[:TRAIN], test, truth[TRAIN:], multi=multi)
    assert found.metrics == again.metrics  # the same twice, to the last bit
    return trivial(truth[:TRAIN], answers), found.metrics, found.name


@pytest.mark.quick
def test_text_classes():
    chance, found, name = judged("classify", *texts())
    assert name == "TF-IDF + logistic regression"
    assert found["accuracy"] > 0.95 > 0.5 > chance["accuracy"]
    assert chance["auc"] == 0.5


def test_control_nothing_to_learn_is_not_learned():
    rows, truth = texts()
    _, found, _ = judged("classify", rows, np.random.default_rng(9).permutation(truth))
    assert found["accuracy"] < 0.55


def test_text_numbers():
    rows, truth = texts()
    chance, found, name = judged("regress", rows, truth * 10.0)
    assert name == "TF-IDF + ridge regression" and found["rmse"] < chance["rmse"] / 3
    assert chance["r2"] <= 0


def test_tables_with_missing_values_and_categories():
    rows, truth = table()
    chance, found, name = judged("regress", rows, truth)
    assert name == "gradient boosting" and found["rmse"] < chance["rmse"] / 2
    chance, found, _ = judged("classify", rows, (truth > np.median(truth)).astype(int))
    assert found["accuracy"] > 0.85 and chance["balanced_accuracy"] == 0.5


def test_several_outputs_and_label_sets():
    rows, truth = table()
    both = np.stack([truth, -truth], 1)
    both[5, 1] = np.nan
    chance, found, _ = judged("regress", rows, both)
    assert found["rmse.1"] < chance["rmse.1"] / 2
    sets = np.stack([truth > 1, truth < 2, truth > 99], 1).astype(int)
    chance, found, _ = judged("classify", rows, sets, multi=True)
    assert found["micro_f1"] > chance["micro_f1"]


def test_mixed_columns_use_text_and_images_too():
    rows, _ = table()
    words, kinds = texts()
    mixed = replace(rows, texts=words.texts, images=images()[0].images)
    _, without, _ = judged("classify", rows, kinds)
    _, found, name = judged("classify", mixed, kinds)
    assert name == "gradient boosting on columns, TF-IDF factors and pixels"
    assert without["accuracy"] < 0.55 < 0.8 < found["accuracy"]
    _, _, name = judged("classify", replace(mixed, numbers=None, categories=None), kinds)
    assert name == "gradient boosting on TF-IDF factors and pixels"


def test_images():
    chance, found, name = judged("classify", *images())
    assert "16x16" in name and found["accuracy"] > 0.95 and chance["accuracy"] < 0.7


def test_tags():
    draw = np.random.default_rng(0)
    words = [list(draw.choice(["dog", "runs", "Rome", "Ana", "in"], 6)) for _ in range(ROWS)]
    truth = [["B-L" if w == "Rome" and i and s[i - 1] == "in" else "B-P" if w in ("Rome", "Ana") else "O"
              for i, w in enumerate(s)] for s in words]  # fmt: skip
    rows = RawRows(words=words)
    train, test = halves(rows)
    answers = Answers("tag", truth[TRAIN:], truth[TRAIN:], labels=["O", "B-P", "B-L"])
    by_word = trivial(truth[:TRAIN], answers, train, test)
    blind = trivial(truth[:TRAIN], answers)
    found = strong("tag", train, truth[:TRAIN], test, truth[TRAIN:], labels=answers.labels)
    assert blind["span_f1"] == 0 < by_word["span_f1"] < found.metrics["span_f1"]
    assert found.metrics["span_f1"] > 0.99
    assert found.metrics == strong("tag", train, truth[:TRAIN], test, truth[TRAIN:], labels=answers.labels).metrics
    assert trivial_name(truth[:TRAIN], answers, train, test) == "each word's most frequent tag"


def test_language_models_against_frequencies_and_a_compressor():
    draw = np.random.default_rng(0)
    line = "".join(draw.choice(list("abcdefgh"), 400))
    text = line * 40  # repeats: a compressor sees that, frequencies do not
    tokens = np.array([ord(c) - 97 for c in text])
    train, test = (
        RawRows(texts=[text[:12000]], tokens=tokens[:12000]),
        RawRows(texts=[text[12000:]], tokens=tokens[12000:]),
    )
    answers = Answers("lm", nats=1.0, tokens=3999, bytes=4000)
    plain = trivial(None, answers, train, test)
    assert plain["loss"] == pytest.approx(math.log(8), abs=0.05)
    assert plain["bits_per_byte"] == pytest.approx(3, abs=0.1)
    found = strong("lm", train, None, test, None, judged=answers)
    assert found.metrics["bits_per_byte"] < 0.5 and list(found.metrics) == list(plain)
    assert strong("lm", train, None, test, None).metrics.keys() == {"bits_per_byte"}
    assert strong("lm", RawRows(), None, RawRows(), None).metrics == {}


def test_long_text_is_cut_and_said(monkeypatch):
    monkeypatch.setattr(language, "MOST_TEXT", 2**20)
    train, test = RawRows(texts=["ab" * 2**20]), RawRows(texts=["ab" * 100])
    assert "the last 1 MiB" in strong("lm", train, None, test, None).name


ENGLISH = ["a dog runs", "the dog sleeps", "a cat runs", "the cat sleeps", "a man sleeps", "the man runs", "a cat"]
GERMAN = ["ein Hund rennt", "der Hund schläft", "ein Kater rennt", "der Kater schläft", "ein Mann schläft",
          "der Mann rennt", "ein Kater"]  # fmt: skip


def test_translation_copies_the_source_or_goes_word_by_word():
    sources, truth = ["the man sleeps, Rex.", "a dog sleeps"], ["der Mann schläft, Rex.", "ein Hund schläft"]
    answers = Answers("translate", truth, ["x", "y"])
    found = baselines(answers, GERMAN, RawRows(sources=ENGLISH), RawRows(sources=sources))
    assert found["trivial"]["name"] == "copying the source" and found["trivial"]["metrics"]["exact_match"] == 0.0
    assert found["strong"]["name"] == "IBM Model 1, word by word"
    assert found["strong"]["metrics"]["exact_match"] == 1.0
    shuffled = baselines(
        answers, GERMAN[::-1], RawRows(sources=ENGLISH), RawRows(sources=sources)
    )  # control: wrong pairs
    assert shuffled["strong"]["metrics"]["exact_match"] == 0.0


def test_model_1_is_that_of_loops_over_sentences():
    """The expectations by plain dictionaries, as the paper writes them."""
    pairs = [(a.split(), b.split()) for a, b in zip(ENGLISH, GERMAN, strict=True)]
    chance = {(s, t): 1.0 for source, target in pairs for s in source for t in target}
    for _ in range(ROUNDS):
        count, total = dict.fromkeys(chance, 0.0), dict.fromkeys({s for s, _ in chance}, 0.0)
        for source, target in pairs:
            for t in target:
                norm = sum(chance[s, t] for s in source)
                for s in source:
                    count[s, t] += chance[s, t] / norm
                    total[s] += chance[s, t] / norm
        chance = {(s, t): count[s, t] / total[s] for s, t in count}
    best = {s: max((chance[s, t], t) for other, t in chance if other == s)[1] for s, _ in chance}
    assert word_table(ENGLISH, GERMAN) == best


def test_detection_has_one_usual_object_and_says_that_no_simple_learner_finds_boxes():
    def image(*kinds):
        return Objects(np.array([[2.0, 2, 6, 6]] * len(kinds)), np.array(kinds))

    truth = [image(1), image(1, 0), image(1)]
    answers = Answers("detect", truth, truth, labels=["cat", "dog"])
    sizes = np.full((3, 2), 8)
    found = baselines(answers, truth, RawRows(sizes=sizes), RawRows(sizes=sizes))
    assert found["trivial"]["name"] == "one 'dog' at its mean place in every image"
    assert found["trivial"]["metrics"]["ap50"] == pytest.approx(0.5)  # every dog, no cat
    assert found["strong"] == {"name": "no simple learner finds boxes", "metrics": {}, "seconds": 0.0}
    large = baselines(Answers("detect", [Objects(one.boxes * 10, one.classes) for one in truth], truth), truth,
                      RawRows(sizes=sizes), RawRows(sizes=sizes * 10))  # fmt: skip
    assert large["trivial"]["metrics"]["ap50"] == pytest.approx(0.5)  # places are shares of the image
    nothing = baselines(answers, [], RawRows(sizes=sizes[:0]), RawRows(sizes=sizes))
    assert nothing["trivial"]["metrics"] == {}


def test_the_trivial_class_is_named_as_in_the_file():
    answers = Answers("classify", np.array([0, 1]), np.array([0, 0]), labels=["no", "yes"])
    assert trivial_name(np.array([1, 1, 0]), answers) == "always answering 'yes'"
    assert trivial(np.array([1, 1, 0]), answers)["log_loss"] == pytest.approx(-(math.log(1 / 3) + math.log(2 / 3)) / 2)


def test_large_data_is_sampled_and_said():
    rows, truth = table()
    train, test = halves(rows)
    answers = Answers("regress", truth[TRAIN:], truth[TRAIN:])
    found = learners.learn(learners.regression, train, truth[:TRAIN], test, answers, most=120)
    assert found.name == "gradient boosting on 120 of 300 rows"
    drawn = sample_rows(1000, 10, 3)
    assert len(np.unique(drawn)) == 10 and (np.diff(drawn) > 0).all() and (drawn == sample_rows(1000, 10, 3)).all()


@pytest.mark.parametrize("task", ["classify", "regress"])
def test_poor_data_gives_a_number_or_a_reason_never_a_crash(task):
    truth = np.zeros(6, int if task == "classify" else float)
    cases = [
        RawRows(texts=[""] * 6),
        RawRows(numbers=np.full((6, 1), np.nan)),
        RawRows(categories=np.full((6, 1), None)),
        RawRows(numbers=np.zeros((6, 0))),
        RawRows(images=np.zeros((6, 3, 3))),
    ]
    for rows in cases:
        assert strong(task, rows, truth, rows, truth).metrics
    rare = np.array([0, 1, 2, 2, 2, 2]) if task == "classify" else np.arange(6.0)
    for rows in cases:
        assert strong(task, rows, rare, rows, rare).metrics
    assert not strong(task, RawRows(), truth[:0], RawRows(), truth[:0]).metrics


def test_without_scikit_learn_a_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setattr(learners, "is_installed", lambda name: False)
    real = builtins.__import__

    def refuse(name, *rest):
        assert not name.startswith("sklearn")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    rows, truth = table()
    found = strong("regress", rows, truth, rows, truth)
    assert found.metrics == {} and "pip install" in found.name


def test_categories_become_codes_by_frequency():
    before, after = codes(np.array(["b", "a", "b", None, ""], object), np.array(["a", "new", None], object))
    assert before[:3].tolist() == [0, 1, 0] and np.isnan(before[3:]).all()
    assert after[:2].tolist() == [1, 254] and np.isnan(after[2])
    assert np.isnan(codes(np.array([3, -1]), np.array([3]))[0][1])


def test_pixels_are_means_over_boxes():
    image = np.arange(32 * 32, dtype=np.float64).reshape(1, 32, 32)
    expected = image.reshape(1, 16, 2, 16, 2).mean((2, 4)).reshape(1, -1)
    assert pixels(image) == pytest.approx(expected)
    assert pixels(np.ones((2, 5, 40, 3))).shape == (2, 5 * 16)


def test_truth_may_come_as_floats():
    rows, truth = table()
    sets = np.stack([truth > 1, truth < 2], 1).astype(np.float32)
    as_floats, as_ints = (judged("classify", rows, kind, multi=True)[1] for kind in (sets, sets.astype(int)))
    assert as_floats == as_ints
    one = (truth > 1).astype(np.float32)
    assert judged("classify", rows, one)[:2] == judged("classify", rows, one.astype(int))[:2]

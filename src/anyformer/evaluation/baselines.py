"""Baselines on the same split as the model: the trivial answer, and a strong simple learner of the kind of data."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from anyformer.evaluation.answers import Answers
from anyformer.evaluation.average_precision import Objects
from anyformer.evaluation.baseline_rows import Rows, Series, chosen, sampled
from anyformer.evaluation.forecasts import linear_map, repeat_past
from anyformer.evaluation.metrics import metrics
from anyformer.evaluation.text_scores import several
from anyformer.evaluation.translation_table import word_by_word, word_table
from anyformer.extras import install_command, installed

MOST_ROWS = 50_000  # rows a strong baseline learns from; above it a sample is drawn, and its name says so
MOST_TEXT = 16 * 2**20  # bytes of training text that a compressor sees before the text it is judged on
MOST_JUDGED = 4 * 2**20


class Baseline(NamedTuple):
    """A baseline's name, its metrics and the seconds it took; without metrics the name says why there are none."""

    name: str
    metrics: dict[str, float]
    seconds: float

    def facts(self) -> dict[str, Any]:
        """As evaluation.json holds it."""
        return {"name": self.name, "metrics": self.metrics, "seconds": round(self.seconds, 2)}


def baselines(
    answers: Answers, train_truth: Any, train: Rows, test: Rows, *, seed: int = 0, strong_too: bool = True
) -> dict[str, Any]:
    """Both baselines as evaluation.json holds them: `test` are the raw rows of `answers`, in the same order."""
    if train.series is not None and test.series is not None:
        return forecast(answers, train.series, test.series, strong_too=strong_too)
    started = time.perf_counter()
    name, scores = trivial_name(train_truth, answers, train, test), trivial(train_truth, answers, train, test)
    found = {"trivial": Baseline(name, scores, time.perf_counter() - started).facts()}
    if strong_too:
        found["strong"] = strong(
            answers.task, train, train_truth, test, answers.truth,
            labels=answers.labels, multi=answers.multi, seed=seed, judged=answers,
        ).facts()  # fmt: skip
    return found


def forecast(answers: Answers, train: Series, test: Series, *, strong_too: bool) -> dict[str, Any]:
    """Both baselines of a forecast: every foreseen step of every window is a row of `answers`."""
    found: dict[str, Any] = {}
    for kind, learn in (("trivial", repeat_past), ("strong", linear_map))[: 1 + strong_too]:
        started = time.perf_counter()
        if len(train) and len(test):
            name, said = learn(train, test)
            scores = metrics(Answers("regress", answers.truth, said.reshape(np.shape(answers.truth)),
                                     labels=answers.labels))  # fmt: skip
        else:
            name, scores = "no window to learn from", {}
        found[kind] = Baseline(name, scores, time.perf_counter() - started).facts()
    return found


# ---------------------------------------------------------------- trivial


def trivial(
    train_truth: Any, answers: Answers, train: Rows | None = None, test: Rows | None = None
) -> dict[str, float]:
    """Metrics of the answer that needs no input, on the rows of `answers`; {} where it cannot be given.

    classify: the most frequent class, with the classes' shares as probabilities; multi-label: each label's majority.
    regress: the training mean. tag: each word's most frequent tag (needs `words` of both sides), else the most
    frequent tag. lm: tokens by their frequency (needs `tokens` of both sides). translate: the source copied.
    detect: one object of the most frequent class in every image, at its mean box (needs `sizes` of both sides).
    """
    if answers.task == "lm":
        return unigrams(answers, train, test)
    if answers.task == "translate":
        if test is None or test.sources is None:
            return {}
        return metrics(Answers("translate", answers.truth, list(test.sources)))
    if not len(train_truth) or not len(answers.truth):
        return {}
    if answers.task == "detect":
        return usual_object(train_truth, answers, train, test)
    if answers.task == "tag":
        return metrics(
            Answers("tag", answers.truth, tags_by_word(train_truth, answers, train, test), labels=answers.labels)
        )
    truth, count = np.asarray(train_truth), len(answers.truth)
    if answers.task == "regress":
        same = np.broadcast_to(np.nanmean(np.asarray(truth, np.float64), axis=0), np.shape(answers.truth))
        return metrics(Answers("regress", answers.truth, same, labels=answers.labels))
    if answers.multi:
        shares = np.broadcast_to(truth.mean(0), (count, truth.shape[1]))
        return metrics(Answers("classify", answers.truth, shares > 0.5, shares, answers.labels, multi=True))
    shares = class_shares(truth, answers)
    chances = np.broadcast_to(shares, (count, len(shares)))
    return metrics(Answers("classify", answers.truth, np.full(count, shares.argmax()), chances, answers.labels))


def trivial_name(train_truth: Any, answers: Answers, train: Rows | None = None, test: Rows | None = None) -> str:
    """The trivial baseline in words that finish "better than ...".

    >>> answers = Answers("classify", np.array([0, 1]), np.array([0, 0]), labels=["no", "yes"])
    >>> trivial_name(np.array([0, 0, 1]), answers)
    "always answering 'no'"
    """
    if answers.task == "classify" and not answers.multi and len(train_truth):
        most = int(class_shares(np.asarray(train_truth), answers).argmax())
        return f"always answering '{answers.labels[most] if answers.labels else most}'"
    if answers.task == "detect":
        kind = usual_class(train_truth)
        named = answers.labels[kind] if answers.labels and kind is not None else kind
        return f"one '{named}' at its mean place in every image"
    by_word = train is not None and train.words is not None and test is not None and test.words is not None
    names = {
        "classify": "the majority of each label",
        "regress": "always answering the training mean",
        "tag": "each word's most frequent tag" if by_word else "always answering the most frequent tag",
        "lm": "guessing tokens by their frequency",
        "translate": "copying the source",
    }
    return names[answers.task]


def class_shares(truth: np.ndarray, answers: Answers) -> np.ndarray:
    """How often each class occurs in training, summing to 1."""
    known = truth[truth >= 0].astype(np.int64)
    widths = [0 if answers.probability is None else answers.probability.shape[1], len(answers.labels or ())]
    count = max(int(known.max()) + 1, int(np.max(answers.truth)) + 1, *widths)
    return np.bincount(known, minlength=count) / len(known)


def usual_class(truth: Sequence[Objects]) -> int | None:
    """The class that most objects have, None where there are no objects."""
    kinds = np.concatenate([np.asarray(image.classes, np.int64) for image in truth]) if len(truth) else np.array([])
    return int(np.bincount(kinds).argmax()) if len(kinds) else None


def usual_object(truth: Sequence[Objects], answers: Answers, train: Rows | None, test: Rows | None) -> dict[str, float]:
    """One object in every image: the most frequent class, in the mean of its boxes as shares of their images."""
    kind = usual_class(truth)
    if kind is None or train is None or test is None or train.sizes is None or test.sizes is None:
        return {}
    places = [image.of(kind).boxes / np.tile(size, 2) for image, size in zip(truth, train.sizes, strict=True)]
    box = np.concatenate(places).mean(0)
    said = [Objects((box * np.tile(size, 2))[None], np.array([kind]), np.ones(1)) for size in test.sizes]
    return metrics(Answers("detect", answers.truth, said, labels=answers.labels))


def unigrams(answers: Answers, train: Rows | None, test: Rows | None) -> dict[str, float]:
    """Language model that knows only how frequent each token is in training; one is added to every count."""
    if train is None or test is None or train.tokens is None or test.tokens is None or not len(test.tokens):
        return {}
    size = int(max(train.tokens.max(initial=0), test.tokens.max())) + 1
    counts = np.bincount(train.tokens, minlength=size) + 1.0
    nats = float(-np.log(counts / counts.sum())[test.tokens].mean())
    return metrics(Answers("lm", nats=nats * answers.tokens, tokens=answers.tokens, bytes=answers.bytes))


def most_frequent(values: Iterable[str]) -> str:
    """The most frequent of some names; among equals the first in the alphabet."""
    return min(Counter(values).items(), key=lambda item: (-item[1], item[0]))[0]


def tags_by_word(
    train_truth: Sequence[Sequence[str]], answers: Answers, train: Rows | None, test: Rows | None
) -> list[list[str]]:
    """Each word with the tag it has most often in training; a word not met there has the most frequent tag of all."""
    usual = most_frequent(chain.from_iterable(train_truth))
    if train is None or test is None or train.words is None or test.words is None:
        return [[usual] * len(tags) for tags in answers.truth]
    met: dict[str, list[str]] = {}
    for words, tags in zip(train.words, train_truth, strict=True):
        for word, tag in zip(words, tags, strict=False):
            met.setdefault(word, []).append(tag)
    best = {word: most_frequent(tags) for word, tags in met.items()}
    return [[best.get(word, usual) for word in words] for words in test.words]


# ---------------------------------------------------------------- strong


def strong(
    task: str,
    train: Rows,
    train_truth: Any,
    test: Rows,
    test_truth: Any,
    *,
    labels: list[str] | None = None,
    multi: bool = False,
    seed: int = 0,
    judged: Answers | None = None,
    most: int = MOST_ROWS,
) -> Baseline:
    """A strong simple learner for this kind of data, trained on the training rows and judged on the same test rows.

    `judged` are the model's answers; of a language model they say how many tokens and bytes the losses are spread over.
    """
    started = time.perf_counter()
    if task == "detect":
        return Baseline("no simple learner finds boxes", {}, 0.0)
    if task == "translate":
        name, scores = word_for_word(train, train_truth, test, test_truth)
        return Baseline(name, scores, time.perf_counter() - started)
    if task == "lm":
        name, scores = compressed(train, test, judged)
        return Baseline(name, scores, time.perf_counter() - started)
    if not installed("sklearn"):
        return Baseline(f"scikit-learn is not installed: {install_command('sklearn')}", {}, 0.0)
    from anyformer.evaluation import learners

    if not len(train) or not len(test):
        return Baseline("no rows to learn from", {}, 0.0)
    rows = sampled(len(train), most, seed)
    said_rows = f" on {len(rows):,} of {len(train):,} rows" if len(rows) < len(train) else ""
    train, train_truth = (train, train_truth) if not said_rows else (train.take(rows), chosen(train_truth, rows))
    learn: Callable[..., tuple[str, Answers]] = {
        "tag": learners.tagger, "regress": learners.regression, "classify": learners.classification
    }[task]  # fmt: skip
    settings = learners.Settings(labels=labels, multi=multi, seed=seed)
    with learners.quiet_and_single():
        name, answers = learn(train, train_truth, test, test_truth, settings)
    return Baseline(name + said_rows, metrics(answers), time.perf_counter() - started)


def word_for_word(train: Rows, train_truth: Any, test: Rows, test_truth: Any) -> tuple[str, dict[str, float]]:
    """Every word by the one that most probably stands for it in the training pairs."""
    if not train.sources or not test.sources:
        return "no sentences to learn words from", {}
    references = [one[0] for one in several(train_truth)]
    table = word_table(train.sources, references)
    said = [word_by_word(table, text) for text in test.sources]
    return "IBM Model 1, word by word", metrics(Answers("translate", test_truth, said))


def compressed(train: Rows, test: Rows, judged: Answers | None) -> tuple[str, dict[str, float]]:
    """What xz needs for the test text when it has just seen the training text: a compressor is a language model."""
    import lzma

    if train.texts is None or test.texts is None:
        return "no text for a compressor", {}
    before, after = "\n".join(train.texts).encode(), "\n".join(test.texts).encode()
    if not after:
        return "no text for a compressor", {}
    cut = [f"the last {MOST_TEXT // 2**20} MiB of training text"] if len(before) > MOST_TEXT else []
    before, after = before[-MOST_TEXT:], after[:MOST_JUDGED]
    sizes = [len(lzma.compress(text, lzma.FORMAT_XZ, preset=9)) for text in (before, before + after)]
    bits_per_byte = 8 * (sizes[1] - sizes[0]) / len(after)
    name = "xz after the training text" + "".join(f" ({what})" for what in cut)
    if judged is None or not judged.tokens or not judged.bytes:
        return name, {"bits_per_byte": bits_per_byte}
    nats = bits_per_byte * judged.bytes * math.log(2)
    return name, metrics(Answers("lm", nats=nats, tokens=judged.tokens, bytes=judged.bytes))

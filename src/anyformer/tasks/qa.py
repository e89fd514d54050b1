"""Extractive question answering: the span of a context that answers a question, or no answer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from anyformer.data.answer_spans import (
    ANSWERS,
    CONTEXTS,
    MOSTLY,
    QUESTIONS,
    STARTS,
    AnswerSpan,
    QuestionColumns,
    find_answers,
    find_columns,
    named_like,
    read_answers,
    share_inside,
)
from anyformer.data.columns.cells import factorize, texts
from anyformer.data.columns.look import Facts
from anyformer.data.datasets.encode_questions import NOWHERE, characters
from anyformer.data.datasets.question_windows import QuestionWindows
from anyformer.data.datasets.rows import RowExamples
from anyformer.data.decision import Decision, Input
from anyformer.data.examples import Examples
from anyformer.data.frame import Frame
from anyformer.data.preprocess import Preprocess
from anyformer.data.settings import Data
from anyformer.data.sizes import Sizes
from anyformer.evaluation.answer_baselines import answer_by_words, learn_words, usual_answer
from anyformer.evaluation.answer_scores import answer_metrics, best_scores
from anyformer.evaluation.answers import Answers, RowMetrics
from anyformer.evaluation.baseline_rows import RawRows
from anyformer.evaluation.bootstrap import RowSums, mean_of_rows
from anyformer.evaluation.facts import short
from anyformer.heads import Span
from anyformer.objectives import QuestionAnswering
from anyformer.tasks.habits import FINE_TUNE, TrainingDefaults
from anyformer.tasks.network import size_for
from anyformer.tasks.row_task import RowTask
from anyformer.tasks.target_look import Match, TargetLook

if TYPE_CHECKING:
    from anyformer.tasks.evaluator import Evaluator

NOT_THERE = "the answer is not in its context"
FEW_CONTEXTS = 10  # with fewer, questions about one context are not kept in one split


@dataclass(frozen=True)
class FoundAnswer:
    """A predicted answer: a span of the context, or none."""

    text: str
    start: int | None  # character position in the context; None for no answer
    score: float  # its probability among all candidate spans, and no answer if that is possible
    no_answer: float | None = None  # the probability of no answer, if the model was trained on such rows


def said_texts(answers: Sequence[FoundAnswer | str]) -> list[str]:
    """The texts of answers, from a model or a baseline."""
    return [one.text if isinstance(one, FoundAnswer) else one for one in answers]


class QATask(RowTask):
    """A span of the context, evaluated by SQuAD's exact match and F1."""

    name = "qa"
    title = "question answering"
    verb = "answers questions"
    objective = QuestionAnswering
    reads = "a question and its context are read"
    unread = "only the question and its context are read"

    # ------------------------------------------------------------ which data

    def decide_without_target(
        self, frame: Frame, facts: Mapping[str, Facts], settings: Data, *, asked: bool
    ) -> Decision | None:
        """A table whose columns are named like context, question and answer."""
        from anyformer.tasks.decide import refuse_named

        answer, start = named_like(frame, ANSWERS), named_like(frame, STARTS)
        if answer is None:
            return None
        target = (answer,) if start is None else (answer, start)
        names = [name for name in settings.inputs or frame.names if name not in target]
        found = columns_of(frame, facts, answer, names, asked=asked)
        if found is None:
            return None
        inputs = (found.question, found.context)
        others = [name for name in frame.names if name not in (*inputs, *target)]
        refuse_named(settings, others, self.reads)
        why = f"{found.question} is answered by a passage of {found.context}"
        dropped = tuple((name, self.unread) for name in others)
        return Decision(self, target, tuple(Input(name, "text", facts[name]) for name in inputs), why, dropped=dropped)

    def match(self, seen: TargetLook, *, asked: bool) -> Match | None:
        found = columns_of(seen.frame, seen.facts, seen.name, [column.name for column in seen.inputs], asked=asked)
        return None if found is None else Match("one", f"{seen.name} is a passage of {found.context}")

    def choose_inputs(self, seen: TargetLook) -> tuple[list[Input], list[Input]]:
        """The question, then its context."""
        found = columns_of(seen.frame, seen.facts, seen.name, [column.name for column in seen.inputs], asked=True)
        assert found is not None
        read = (found.question, found.context)
        return [Input(name, "text", seen.facts[name]) for name in read], [c for c in seen.inputs if c.name not in read]

    def default_group(self, frame: Frame, decision: Decision) -> str | None:
        """Questions about one context stay in one split, if there are enough contexts."""
        context = decision.inputs[1].name
        return context if len(factorize(frame.column(context))[1]) >= FEW_CONTEXTS else None

    def target_problems(self, frame: Frame, decision: Decision) -> list[tuple[str, np.ndarray]]:
        """An answer that is not in its context cannot be a target; a row without an answer is trained as such."""
        found = find_answers(frame, decision.target, decision.inputs[1].name, may_be_absent=True)
        return [(NOT_THERE, np.array([place is None for place in found], bool))]

    def fit_target(self, frame: Frame, decision: Decision, settings: Data, labels: Sequence[str] | None) -> AnswerSpan:
        question, context = (column.name for column in decision.inputs)
        unanswered = sum(not answers for answers in read_answers(frame, decision.target[0]))
        asked = settings.questions
        return AnswerSpan(names=decision.target, question=question, context=context, stride=asked.stride,
                          max_answer_length=asked.max_answer_length, unanswered=unanswered)  # fmt: skip

    # ------------------------------------------------------------ the model

    def default_preset(self, sizes: Sizes, *, gpu: bool) -> str:
        return f"encoder-{size_for(gpu)}"

    def head(self, own: Any, pool: str, sizes: Sizes) -> Any:
        return own if isinstance(own, Span) else Span()

    def habit(self, sizes: Sizes, *, start: bool) -> TrainingDefaults:
        if start:
            return FINE_TUNE
        return TrainingDefaults(epochs=20, batch_size=32, lr=1e-3, weight_decay=0.1, gpu_batch_size=64, gpu_lr=5e-4)

    # ------------------------------------------------------------ evaluation

    def answer(
        self, evaluator: Evaluator, model: nn.Module, examples: Examples, rows: np.ndarray, *, decode: bool
    ) -> Answers:
        """The best span over all windows of each question."""
        assert isinstance(examples, RowExamples)
        target = span_target(evaluator.preprocess)
        examples = examples.take(rows)
        windows = QuestionWindows(examples)
        best = [BestSpan(target.may_be_absent) for _ in range(len(examples))]
        for batch, out in evaluator.passes(model, windows, np.arange(len(windows))):
            losses = evaluator.objective.row_losses(out, batch).double().cpu().tolist()
            for window, logits, loss in zip(
                batch.rows.tolist(), out.logits.double().cpu().numpy(), losses, strict=True
            ):
                best[windows.owner[window]].add(logits, windows.context_at(window), target.max_answer_length, loss)
        contexts = texts(examples.frame.take(examples.rows).column(target.context))
        found = [span.read(context, characters(examples.arrays, int(row)))
                 for span, context, row in zip(best, contexts, examples.rows, strict=True)]  # fmt: skip
        known = target.names[0] in examples.frame.names
        return Answers(self.name, as_objects(true_answers(examples)) if known else None, as_objects(found),
                       losses=np.array([span.loss for span in best]), examples=examples)  # fmt: skip

    def compute_metrics(self, answers: Answers) -> dict[str, float]:
        return {} if answers.truth is None else answer_metrics(self.predictions(answers), answers.truth)

    def row_sums(self, answers: Answers, metric: str) -> RowSums | None:
        if answers.truth is None or metric not in ("exact_match", "f1"):
            return None
        pairs = zip(said_texts(answers.predicted), answers.truth, strict=True)
        return mean_of_rows(np.array([best_scores(said, right)[metric == "f1"] for said, right in pairs]))

    def main_metric(self, *, multi: bool = False, labels: Sequence[str] = ()) -> str:
        return "f1"

    def has_truth(self, answers: Answers) -> np.ndarray:
        """A row without an answer can be evaluated if the model was trained on such rows."""
        if answers.truth is None:
            return np.zeros(len(answers.predicted), bool)
        may_be_absent = span_target(answers.examples.preprocess).may_be_absent
        return np.array([may_be_absent or bool(right) for right in answers.truth], bool)

    def truth(self, examples: Examples) -> Any:
        return true_answers(questions_of(examples))

    def raw_rows(self, examples: Examples) -> RawRows:
        rows = questions_of(examples)
        target, frame = span_target(rows.preprocess), rows.frame.take(rows.rows)
        return RawRows(texts=texts(frame.column(target.context)), sources=texts(frame.column(target.question)))

    # ------------------------------------------------------------ baselines

    def trivial_baseline(
        self, truth: Any, answers: Answers, train: RawRows, test: RawRows
    ) -> tuple[str, dict[str, float]]:
        """The most frequent answer."""
        if not len(truth):
            return "always answering the same", {}
        usual = usual_answer(truth)
        name = f"always answering {short(usual, 40)!r}" if usual else "always answering that the context does not say"
        return name, self.score_texts([usual] * len(answers.truth), answers)

    def score_texts(self, said: list[str], answers: Answers) -> RowMetrics:
        """Metrics of other predictions for the same questions."""
        return RowMetrics(answer_metrics(said, answers.truth), Answers(self.name, answers.truth, said))

    def strong_baseline(
        self, truth: Any, answers: Answers, train: RawRows, test: RawRows, *, seed: int = 0
    ) -> tuple[str, dict[str, float]]:
        """The sentence that shares most words with the question, and in it the words typical of training answers."""
        if not train.texts or not test.texts or not test.sources:
            return "no context to learn words from", {}
        known = learn_words(train.texts, truth)
        said = [answer_by_words(known, question, text) for question, text in zip(test.sources, test.texts, strict=True)]
        return "the likeliest words of the sentence most like the question", self.score_texts(said, answers)

    # ------------------------------------------------------------ the report

    def error_name(self, answers: Answers) -> str:
        return "1 − F1"

    def row_errors(self, answers: Answers) -> Sequence[float] | np.ndarray:
        pairs = zip(self.predictions(answers), answers.truth, strict=True)
        return [1 - best_scores(said, right)[1] for said, right in pairs]

    def describe(self, answers: Answers, row: int) -> dict[str, Any]:
        right = " | ".join(dict.fromkeys(answers.truth[row])) or "(none)"
        found = answers.predicted[row]
        return {"truth": short(right), "predicted": short(found.text or "(none)"), "probability": round(found.score, 4)}

    # ------------------------------------------------------------ new rows

    def predictions(self, answers: Answers) -> list[Any]:
        return [found.text for found in answers.predicted]

    def prediction_columns(self, answers: Answers) -> dict[str, list[Any]]:
        found: list[FoundAnswer] = list(answers.predicted)
        columns: dict[str, list[Any]] = {
            "prediction": [one.text for one in found],
            "start": [one.start for one in found],
            "score": [round(one.score, 6) for one in found],
        }
        if any(one.no_answer is not None for one in found):
            columns["no_answer"] = [round(one.no_answer or 0.0, 6) for one in found]
        return columns

    def to_json(self, answers: Answers) -> list[dict[str, Any]]:
        made = []
        for found in answers.predicted:
            stop = None if found.start is None else found.start + len(found.text)
            said = {"answer": found.text, "start": found.start, "end": stop, "score": round(found.score, 6)}
            made.append(said if found.no_answer is None else said | {"no_answer": round(found.no_answer, 6)})
        return made

    def example_request(self, preprocess: Preprocess) -> Any | None:
        target = span_target(preprocess)
        return {target.question: "Where does Anna live?", target.context: "Anna lives in Oslo."}


# ---------------------------------------------------------------- columns and rows


def columns_of(
    frame: Frame, facts: Mapping[str, Facts], answer: str, names: Sequence[str], *, asked: bool
) -> QuestionColumns | None:
    """The question and context columns; unless `asked`, only if named so and the context contains the answers."""
    if asked:
        named = [name for name in names if name.lower() in (*CONTEXTS, *QUESTIONS)]
        return find_columns(frame, answer, [name for name in names if name in named or facts[name].column.is_text])
    if answer.lower() not in ANSWERS:
        return None
    question, context = (named_like(frame.of(names), those) for those in (QUESTIONS, CONTEXTS))
    if question is None or context is None or share_inside(frame, answer, context) < MOSTLY:
        return None
    return QuestionColumns(question, context)


def span_target(preprocess: Preprocess) -> AnswerSpan:
    assert isinstance(preprocess.target, AnswerSpan)
    return preprocess.target


def questions_of(examples: Examples) -> RowExamples:
    """The questions of some examples, also of those split into windows."""
    found = examples.questions if isinstance(examples, QuestionWindows) else examples
    assert isinstance(found, RowExamples)
    return found


def true_answers(examples: RowExamples) -> list[list[str]]:
    """The accepted answers of each question."""
    return read_answers(examples.frame.take(examples.rows), span_target(examples.preprocess).names[0])


def as_objects(values: Sequence[Any]) -> np.ndarray:
    """Any values as a one-dimensional object array, which can be indexed by rows."""
    made = np.empty(len(values), object)
    made[:] = values
    return made


# ---------------------------------------------------------------- from logits to passages


class BestSpan:
    """The best span of a context, updated window by window; a score is the sum of the start and end logits."""

    def __init__(self, may_be_absent: bool) -> None:
        self.may_be_absent = may_be_absent
        self.best, self.first, self.last = -math.inf, 0, 0
        self.total = -math.inf  # log-sum-exp of the scores of all spans in all windows
        self.nothing = math.inf  # the lowest score of "no answer" over the windows
        self.losses: list[float] = []

    def add(self, logits: np.ndarray, at: tuple[int, int, int], longest: int, loss: float) -> None:
        """Add a window's logits (T,2); `at` is the position of its part of the context."""
        first, count, before = at
        self.losses.append(loss)
        self.nothing = min(self.nothing, float(logits[NOWHERE].sum()))
        if not count:
            return
        scores = span_scores(logits[first : first + count], longest)  # (S, longest)
        self.total = float(np.logaddexp(self.total, log_sum_exp(scores)))
        place = int(scores.argmax())
        if scores.flat[place] > self.best:
            self.best = float(scores.flat[place])
            self.first = before + place // scores.shape[1]
            self.last = self.first + place % scores.shape[1]

    @property
    def loss(self) -> float:
        return sum(self.losses) / max(1, len(self.losses))

    def read(self, context: str, chars: np.ndarray) -> FoundAnswer:
        """The answer as text, stripped; `chars` are the character positions of the context's tokens."""
        total = float(np.logaddexp(self.total, self.nothing)) if self.may_be_absent else self.total
        absent = math.exp(self.nothing - total) if self.may_be_absent else None
        if self.best == -math.inf or (self.may_be_absent and self.nothing > self.best):
            return FoundAnswer("", None, absent or 0.0, absent)
        start, stop = int(chars[self.first, 0]), int(chars[self.last, 1])
        text = context[start:stop]
        start += len(text) - len(text.lstrip())
        return FoundAnswer(text.strip(), start, math.exp(self.best - total), absent)


def span_scores(logits: np.ndarray, longest: int) -> np.ndarray:
    """Scores (S, longest) of spans by first token and number of further tokens, from start and end logits (S,2)."""
    ends = np.concatenate([logits[:, 1], np.full(longest - 1, -np.inf)])
    return logits[:, :1] + np.lib.stride_tricks.sliding_window_view(ends, longest)


def log_sum_exp(values: np.ndarray) -> float:
    most = float(values.max())
    return most + math.log(float(np.exp(values - most).sum()))

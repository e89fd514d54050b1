"""Tagging: a tag for every word of a sentence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from anyformer.core.model import Model
from anyformer.data.columns.kinds import only_modality
from anyformer.data.columns.words import WordList
from anyformer.data.datasets.rows import RowExamples
from anyformer.data.decision import Decision, Input, name_of
from anyformer.data.examples import Examples
from anyformer.data.files.conll import conll_text, read_words
from anyformer.data.files.path_kinds import kind_of_path
from anyformer.data.frame import Frame
from anyformer.data.prepared import StartModelConstraints
from anyformer.data.preprocess import Preprocess
from anyformer.data.settings import Data, TokenizerSettings
from anyformer.data.sizes import Sizes
from anyformer.data.tag_schemes import are_spans, impossible_transitions
from anyformer.data.targets import ABSENT, Tags
from anyformer.embeds import Words
from anyformer.errors import UserError
from anyformer.evaluation import learners
from anyformer.evaluation.answers import Answers
from anyformer.evaluation.baseline_rows import RawRows
from anyformer.evaluation.bootstrap import RowSums
from anyformer.evaluation.facts import short, tag_facts
from anyformer.evaluation.metrics import pad_tags, tag_metrics
from anyformer.evaluation.row_sums import tag_sums
from anyformer.heads import CRF, TokenHead
from anyformer.heads.crf import log_marginals, viterbi
from anyformer.objectives import Batch, Objective
from anyformer.objectives import Tag as TagLoss
from anyformer.objectives.tag import chain_scores
from anyformer.slots import Network
from anyformer.tasks.habits import TrainingDefaults, habit_for
from anyformer.tasks.network import preset_for_parts
from anyformer.tasks.row_task import RowTask
from anyformer.tasks.target_look import Match, TargetLook

if TYPE_CHECKING:
    from anyformer.tasks.evaluator import Evaluator

NEVER = -1e6  # score of an impossible transition, below any sum of logits
UNEVEN = "words and tags differ in number"


class TagTask(RowTask):
    """One tag per word; tags that mark spans (B-PER, I-PER) are evaluated by spans."""

    name = "tag"
    title = "tagging"
    verb = "tags words"
    objective = TagLoss
    origin = "sentences"
    origin_reason = "each word has a tag"
    reads = "a tagger reads words alone"
    unread = "only the words are read"

    # ------------------------------------------------------------ which data

    def match(self, seen: TargetLook, *, asked: bool) -> Match | None:
        if seen.is_list and seen.sentences is not None:
            return Match("one", "each word has a tag")
        if not asked:
            return None
        if seen.is_list:
            raise UserError(
                f"no column has as many words as {seen.name} has tags", where=name_of(seen.frame),
                fix="give lists of equal length",
            )  # fmt: skip
        raise UserError(
            f"{seen.name} holds no lists of tags", where="--task tag", fix="give a CoNLL file, or lists in JSONL"
        )

    def choose_inputs(self, seen: TargetLook) -> tuple[list[Input], list[Input]]:
        """Only the column of words."""
        words = [replace(column, kind="sentence") for column in seen.inputs if column.name == seen.sentences]
        return words, [column for column in seen.inputs if column.name != seen.sentences]

    def settle_inputs(self, inputs: list[Input], settings: Data, given: StartModelConstraints) -> list[Input]:
        """Whole words with their characters, unless a given tokenizer or network splits words into pieces."""
        if given.preprocess is not None:
            kinds = {column.name: column.kind for column in given.preprocess.columns or ()}
            return [replace(column, kind=kinds.get(column.name, column.kind)) for column in inputs]
        pieces = given.tokenizer is not None or settings.tokenizer != TokenizerSettings()
        if given.network is not None:
            pieces = not any(isinstance(part, Words) for _, part in given.network.walk())
        return inputs if pieces else [replace(column, kind=WordList.kind) for column in inputs]

    def target_problems(self, frame: Frame, decision: Decision) -> list[tuple[str, np.ndarray]]:
        import pyarrow.compute as pc

        column = frame.column(decision.target[0])
        words = pc.list_value_length(frame.column(decision.inputs[0].name))
        uneven = pc.fill_null(pc.not_equal(pc.list_value_length(column), words), True).to_numpy()
        return [(ABSENT, column.is_null().to_numpy()), (UNEVEN, uneven)]

    def fit_target(self, frame: Frame, decision: Decision, settings: Data, labels: Sequence[str] | None) -> Tags:
        return Tags.fit(frame, decision.target, labels)

    def read_new_files(self, paths: Sequence[Path], settings: Data, cache: Path) -> Frame | None:
        """Plain text, one sentence per line."""
        plain = all(kind_of_path(path) == "text" for path in paths)
        return read_words(list(paths), settings.format) if plain else None

    # ------------------------------------------------------------ the model

    def default_preset(self, sizes: Sizes, *, gpu: bool) -> str:
        return preset_for_parts(sizes.parts, gpu=gpu)

    def head(self, own: Any, pool: str, sizes: Sizes) -> Any:
        """Tags that mark spans depend on each other; a CRF needs exactly one token per word."""
        if sizes.spans and reads_whole_words(sizes):
            return CRF(classes=sizes.classes, dropout=getattr(own, "dropout", 0.0))
        return TokenHead(classes=sizes.classes, dropout=getattr(own, "dropout", 0.0))

    def habit(self, sizes: Sizes, *, start: bool) -> TrainingDefaults:
        if start or reads_whole_words(sizes):
            return habit_for(sizes.parts, start=start, rows=sizes.rows)
        return TrainingDefaults(epochs=20, batch_size=16, lr=1e-3, weight_decay=0.1, gpu_batch_size=64, gpu_lr=1e-3)

    def fit_objective(self, objective: Objective, spec: Network) -> Objective:
        smooth = isinstance(objective, TagLoss) and objective.label_smoothing > 0
        if smooth and isinstance(spec, Model) and isinstance(spec.head, CRF):
            raise UserError("a CRF learns whole sequences of tags, which have no smoothed form",
                            where="objective.label_smoothing", fix="use 0")  # fmt: skip
        return objective

    def next_command(self, run: Path) -> str:
        return f"anyformer predict {run} new.conll"

    # ------------------------------------------------------------ evaluation

    def answer(
        self, evaluator: Evaluator, model: nn.Module, examples: Examples, rows: np.ndarray, *, decode: bool
    ) -> Answers:
        """One tag per word; words beyond the model's length get the tag for none, or the first tag."""
        assert isinstance(examples, RowExamples)
        preprocess = evaluator.preprocess
        labels = list(preprocess.labels or ())
        missing = "O" if "O" in labels else labels[0]
        strict = isinstance(preprocess.target, Tags) and preprocess.target.strict
        never = impossible_transitions(labels) if strict else None
        found: dict[int, list[str]] = {}
        sure: dict[int, list[float]] = {}
        losses: dict[int, float] = {}
        for batch, out in evaluator.passes(model, examples, rows):
            tags = best_tags(out, batch, never)
            best, chances = tags.cpu().numpy(), tag_chances(out, batch, tags).cpu().numpy()
            each = evaluator.objective.row_losses(out, batch).float().cpu().tolist()
            for row, ids, share, loss in zip(batch.rows.tolist(), best, chances, each, strict=True):
                begins = examples.begins(row)
                found[row], sure[row] = [labels[i] for i in ids[begins]], share[begins].tolist()
                losses[row] = loss
        target = preprocess.target.names[0] if preprocess.target else "tags"
        truth, predicted, certainty = [], [], []
        for row in rows.tolist():
            cells = examples.cells(row)
            words = len(cells[sentence_of(preprocess)])
            predicted.append(found[row] + [missing] * (words - len(found[row])))
            certainty.append(sure[row] + [0.0] * (words - len(found[row])))
            truth.append(list(cells[target]) if target in cells else [missing] * words)
        return Answers(self.name, truth, predicted, certainty=certainty, labels=labels, examples=examples,
                       losses=np.array([losses[row] for row in rows.tolist()]))  # fmt: skip

    def compute_metrics(self, answers: Answers) -> dict[str, float]:
        return tag_metrics(answers)

    def row_sums(self, answers: Answers, metric: str) -> RowSums | None:
        return tag_sums(answers, metric)

    def main_metric(self, *, multi: bool = False, labels: Sequence[str] = ()) -> str:
        return "span_f1" if are_spans(labels) else "accuracy"

    def truth(self, examples: Examples) -> Any:
        assert isinstance(examples, RowExamples) and examples.preprocess.target is not None
        return examples.frame.take(examples.rows).column(examples.preprocess.target.names[0]).to_pylist()

    # ------------------------------------------------------------ baselines

    def trivial_baseline(
        self, truth: Any, answers: Answers, train: RawRows, test: RawRows
    ) -> tuple[str, dict[str, float]]:
        """Each word's most frequent tag, else the most frequent tag overall."""
        by_word = train.words is not None and test.words is not None
        name = "each word's most frequent tag" if by_word else "always answering the most frequent tag"
        if not len(truth) or not len(answers.truth):
            return name, {}
        said = tags_by_word(truth, answers, train, test)
        return name, self.metrics(Answers(self.name, answers.truth, said, labels=answers.labels))

    def strong_baseline(
        self, truth: Any, answers: Answers, train: RawRows, test: RawRows, *, seed: int = 0
    ) -> tuple[str, dict[str, float]]:
        """A linear model of each word and its neighbours."""
        learnt = learners.learn(learners.tagger, train, truth, test, answers, seed=seed)
        if learnt.predicted is None:
            return learnt.name, {}
        return learnt.name, self.metrics(Answers(self.name, answers.truth, learnt.predicted, labels=answers.labels))

    # ------------------------------------------------------------ the report

    def facts(self, answers: Answers) -> dict[str, Any]:
        note = "Numbers before a tag count the words of the sentence."
        return tag_facts(answers) | {"rows_are": "sentences", "unit": "tag", "worst_note": note}

    def error_name(self, answers: Answers) -> str:
        return "wrong words"

    def row_errors(self, answers: Answers) -> Sequence[float] | np.ndarray:
        pairs = zip(answers.truth, pad_tags(answers.truth, answers.predicted), strict=True)
        return [sum(a != b for a, b in zip(want, got, strict=True)) for want, got in pairs]

    def describe(self, answers: Answers, row: int) -> dict[str, Any]:
        """The wrongly tagged words, each with its position in the sentence."""
        want, got = answers.truth[row], pad_tags([answers.truth[row]], [answers.predicted[row]])[0]
        wrong = [at for at in range(len(want)) if want[at] != got[at]]
        sides = [", ".join(f"{at + 1}: {tags[at] or '(none)'}" for at in wrong) for tags in (want, got)]
        return {"truth": short(sides[0], 120), "predicted": short(sides[1], 120)}

    # ------------------------------------------------------------ new rows

    def prediction_columns(self, answers: Answers) -> dict[str, list[Any]]:
        return {"prediction": [" ".join(tags) for tags in answers.predicted]}

    def default_suffix(self, *, lines: bool) -> str:
        return ".conll"

    def to_conll(self, answers: Answers, preprocess: Preprocess) -> str:
        """One word and its tag per line, a blank line between sentences."""
        name = sentence_of(preprocess)
        return conll_text(
            [answers.examples.cells(row)[name] for row in range(len(answers.predicted))], answers.predicted
        )

    def to_json(self, answers: Answers) -> list[dict[str, Any]]:
        name = sentence_of(answers.examples.preprocess)
        words = [answers.examples.cells(row)[name] for row in range(len(answers.predicted))]
        shares = answers.certainty or []
        return [
            {"tags": [{"word": word, "tag": tag, "probability": round(share, 4)}
                      for word, tag, share in zip(sentence, tags, each, strict=True)]}
            for sentence, tags, each in zip(words, answers.predicted, shares, strict=True)
        ]  # fmt: skip


def best_tags(out: Any, batch: Batch, never: np.ndarray | None) -> Tensor:
    """The best tag of every token (B,T); with a CRF the best sequence, excluding transitions in `never`."""
    if out.transitions is None:
        return out.logits.argmax(-1)
    logits, transitions, mask = chain_scores(out, batch)
    if never is not None:
        transitions = transitions.masked_fill(torch.from_numpy(never).to(transitions.device), NEVER)
    return viterbi(logits, transitions, mask)


def tag_chances(out: Any, batch: Batch, tags: Tensor) -> Tensor:
    """The probability of each tag (B,T) for its token; with a CRF the marginal one."""
    logits = out.logits.float() if out.transitions is None else log_marginals(*chain_scores(out, batch))
    return logits.softmax(-1).gather(-1, tags[..., None])[..., 0]


def reads_whole_words(sizes: Sizes) -> bool:
    """Whether every word is one token."""
    alone = only_modality(sizes.parts)
    return alone is not None and alone.whole_words


def sentence_of(preprocess: Preprocess) -> str:
    """The name of the column of words."""
    (sentence,) = preprocess.columns or ()
    return str(sentence.name)


def tags_by_word(truth: Sequence[Sequence[str]], answers: Answers, train: RawRows, test: RawRows) -> list[list[str]]:
    """Each word's most frequent training tag; an unseen word gets the most frequent tag overall."""
    usual = most_frequent(chain.from_iterable(truth))
    if train.words is None or test.words is None:
        return [[usual] * len(tags) for tags in answers.truth]
    met: dict[str, list[str]] = {}
    for words, tags in zip(train.words, truth, strict=True):
        for word, tag in zip(words, tags, strict=False):
            met.setdefault(word, []).append(tag)
    best = {word: most_frequent(tags) for word, tags in met.items()}
    return [[best.get(word, usual) for word in words] for words in test.words]


def most_frequent(values: Iterable[str]) -> str:
    """The most frequent of some names; ties go to the first in the alphabet."""
    return min(Counter(values).items(), key=lambda item: (-item[1], item[0]))[0]

"""Sentence embeddings: texts with the same meaning get similar vectors (SimCSE, 2104.08821)."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.data.columns.cells import texts
from anyformer.data.columns.convert import numbers
from anyformer.data.columns.look import Facts, look
from anyformer.data.datasets.rows import RowExamples
from anyformer.data.decision import Decision, Input, name_of
from anyformer.data.examples import Examples
from anyformer.data.frame import Frame
from anyformer.data.gather import gather, origin_of
from anyformer.data.prepare_rows import examples_for
from anyformer.data.settings import Data
from anyformer.data.sizes import Sizes
from anyformer.data.targets import ABSENT, Partner, Target, TwoViews
from anyformer.errors import UserError
from anyformer.evaluation.answers import Answers
from anyformer.evaluation.baseline_rows import RawRows
from anyformer.evaluation.facts import short
from anyformer.evaluation.metrics import rank_correlation
from anyformer.heads import Pooled
from anyformer.log import Log
from anyformer.objectives import SentenceContrast
from anyformer.objectives.sentences import View, views
from anyformer.safe_files import scratch_folder
from anyformer.tasks.decide import refuse_named
from anyformer.tasks.row_task import RowTask
from anyformer.tasks.target_look import Match, TargetLook
from anyformer.tasks.trained_model import TrainedModel, preprocess_of

if TYPE_CHECKING:
    from anyformer.tasks.evaluator import Evaluator

AMONG = 64  # candidates in retrieval
MANY = 256  # texts embedded in one batch


class ContrastTask(RowTask):
    """An embedding of every text, learned from single texts or from pairs of texts that belong together."""

    name = "contrast"
    title = "sentence embeddings"
    verb = "gives texts vectors"
    objective = SentenceContrast
    draws_anew = True
    reads = "one text becomes a vector"
    unread = "only one text is read"
    takes_lines = True
    own_suffixes = (".npy",)

    # ------------------------------------------------------------ which data

    def match(self, seen: TargetLook, *, asked: bool) -> Match | None:
        if not asked:
            return None
        if seen.several or not seen.facts[seen.name].column.is_text:
            raise UserError("the other half of a pair is one column of text", where="--target", fix="name one, or none")
        return Match("one", f"each text belongs to its {seen.name}")

    def choose_inputs(self, seen: TargetLook) -> tuple[list[Input], list[Input]]:
        found = seen.texts
        if len(found) != 1:
            raise UserError(f"{len(found)} columns of text to read", where=name_of(seen.frame),
                            fix="choose one with --inputs")  # fmt: skip
        return found, [column for column in seen.inputs if column not in found]

    def decide_without_target(
        self, frame: Frame, facts: Mapping[str, Facts], settings: Data, *, asked: bool
    ) -> Decision | None:
        """One text column of independent sentences, or two of pairs."""
        if not asked:
            return None
        named = settings.inputs
        found = [name for name in frame.names if facts[name].column.is_text and (named is None or name in named)]
        if not 1 <= len(found) <= 2:
            raise UserError(f"{len(found)} columns of text", where=name_of(frame),
                            fix="choose one, or two that belong together, with --inputs")  # fmt: skip
        others = [name for name in frame.names if name not in found]
        refuse_named(settings, others, self.reads)
        why = "two views of every text" if len(found) == 1 else f"each {found[0]} belongs to its {found[1]}"
        dropped = tuple((name, self.unread) for name in others)
        return Decision(self, tuple(found[1:]), (Input(found[0], "text", facts[found[0]]),), why, dropped=dropped)

    def target_problems(self, frame: Frame, decision: Decision) -> list[tuple[str, np.ndarray]]:
        return [(ABSENT, np.array([not text for text in texts(frame.column(name))])) for name in decision.target]

    def fit_target(self, frame: Frame, decision: Decision, settings: Data, labels: Sequence[str] | None) -> Target:
        return Partner(names=decision.target) if decision.target else TwoViews(names=(decision.inputs[0].name,))

    # ------------------------------------------------------------ the model and its training

    def head(self, own: Any, pool: str, sizes: Sizes) -> Pooled:
        return Pooled(pool="mean")

    def next_command(self, run: Path) -> str:
        return f"anyformer predict {run} new.txt -o vectors.npy"

    # ------------------------------------------------------------ evaluation

    def answer(
        self, evaluator: Evaluator, model: nn.Module, examples: Examples, rows: np.ndarray, *, decode: bool
    ) -> Answers:
        """The embedding of every text, and how often one view of it retrieves the other.

        Without dropout the two views of a single text would be identical: there a text is cut in the middle, and its
        first half must retrieve the second.
        """
        objective = evaluator.objective
        assert isinstance(objective, SentenceContrast) and isinstance(examples, RowExamples)
        whole, first, second, said = [], [], [], []
        for start in range(0, len(rows), evaluator.batch_size):
            batch = examples.batch(rows[start : start + evaluator.batch_size])
            one, two = views(batch)
            whole.append(embed(model, one, evaluator))
            if one is two:
                one, two = halves(one)
            if bool(two[1].any()):
                first.append(embed(model, one, evaluator))
                second.append(embed(model, two, evaluator))
                said += list(zip(*(decoded(view, evaluator) for view in (one, two)), strict=True))
        vectors = torch.cat(whole).numpy()
        found = Answers(self.name, truth=said or [("", "")] * len(vectors), predicted=vectors, examples=examples)
        if first:
            left, right = torch.cat(first), torch.cat(second)
            groups = zip(left.split(AMONG), right.split(AMONG), strict=True)
            found.losses = torch.cat([objective.losses_between(a, b) for a, b in groups]).numpy()
            found.probability = hits(left, right).numpy()
        return found

    def compute_metrics(self, answers: Answers) -> dict[str, float]:
        if answers.probability is None or not len(answers.probability):
            return {}
        return {"retrieval_accuracy": float(answers.probability.mean())}

    def main_metric(self, *, multi: bool = False, labels: Sequence[str] = ()) -> str:
        return "retrieval_accuracy"

    def evaluate_files(
        self, evaluator: Evaluator, predictor: TrainedModel, files: Sequence[Path], log: Log
    ) -> Answers | None:
        """Pairs of texts with scores (STS): the rank correlation of the cosines. Other files are evaluated by
        retrieval."""
        if origin_of(files, "table") != "table":
            return None
        with scratch_folder() as cache:
            frame = gather(list(files), "table", Data(), cache).frame
            pairs = scored_pairs(frame)
        if pairs is None:
            return None
        first, second, scores = pairs
        vectors = [embed_texts(predictor.model, column, evaluator) for column in (first, second)]
        cosines = (vectors[0] * vectors[1]).sum(-1).numpy()
        found = Answers(self.name, truth=scores, predicted=cosines)
        found.extra = {"spearman": rank_correlation(scores, cosines)}
        words = tfidf(first + second, first, second)
        if words is not None:
            found.extra["tfidf_spearman"] = rank_correlation(scores, (words[0] * words[1]).sum(-1))
        return found

    # ------------------------------------------------------------ baselines

    def truth(self, examples: Examples) -> Any:
        return []

    def trivial_baseline(
        self, truth: Any, answers: Answers, train: RawRows, test: RawRows
    ) -> tuple[str, dict[str, float]]:
        return "guessing", {"retrieval_accuracy": 1 / min(AMONG, max(1, len(answers.truth)))}

    def strong_baseline(
        self, truth: Any, answers: Answers, train: RawRows, test: RawRows, *, seed: int = 0
    ) -> tuple[str, dict[str, float]]:
        """TF-IDF: words in common, weighted by their rarity."""
        first, second = (list(side) for side in zip(*answers.truth, strict=True))
        found = tfidf(list(train.texts or ()), first, second)
        if found is None:
            return "no TF-IDF: scikit-learn is not installed", {}
        return "TF-IDF cosine", {"retrieval_accuracy": float(hits(*map(torch.from_numpy, found)).mean())}

    # ------------------------------------------------------------ the report and new rows

    def describe(self, answers: Answers, row: int) -> dict[str, Any]:
        first, second = answers.truth[row]
        return {"truth": short(second), "predicted": short(first)}

    def predictions(self, answers: Answers) -> list[Any]:
        return [[round(float(value), 6) for value in vector] for vector in answers.predicted]

    def prediction_columns(self, answers: Answers) -> dict[str, list[Any]]:
        return {"embedding": self.predictions(answers)}

    def default_suffix(self, *, lines: bool) -> str:
        return ".jsonl"

    def to_json(self, answers: Answers) -> list[dict[str, Any]]:
        return [{"embedding": vector} for vector in self.predictions(answers)]

    def prediction_file(self, predictor: TrainedModel, files: Sequence[Path], suffix: str) -> bytes:
        """The embeddings (rows, D) as a .npy file."""
        from anyformer.tasks.evaluator import Evaluator
        from anyformer.tasks.prepare import read_new_rows

        preprocess, words, sink = preprocess_of(predictor), predictor.tokenizer, io.BytesIO()
        with scratch_folder() as cache:
            frame, _ = read_new_rows(list(files), preprocess, Data(), cache)
            examples, _ = examples_for(frame, preprocess, words, cache / "rows")
            evaluator = Evaluator(SentenceContrast(), preprocess, words, batch_size=MANY)
            np.save(sink, evaluator(predictor.model, examples).predicted)
        return sink.getvalue()


def embed(model: nn.Module, view: View, evaluator: Evaluator) -> Tensor:
    """Normalised embeddings (B,D) of token ids."""
    device = next(model.parameters()).device
    with evaluator.autocast:
        pooled = model(view[0].to(device), mask=view[1].to(device)).pooled
    return F.normalize(pooled.float(), dim=-1).cpu()


def embed_texts(model: nn.Module, written: Sequence[str], evaluator: Evaluator) -> Tensor:
    """Embeddings (N,D) of texts."""
    words = evaluator.tokenizer
    assert words is not None
    parts = [written[at : at + MANY] for at in range(0, len(written), MANY)]
    limit = evaluator.preprocess.length
    found = [words.padded([row[:limit] for row in words.encode_batch(list(part))], side="right") for part in parts]
    with torch.no_grad():
        return torch.cat([embed(model, view, evaluator) for view in found])


def halves(view: View) -> tuple[View, View]:
    """The first and the second half of the tokens of each row; both are the same if there is a single token."""
    tokens, mask = view
    place, middle = torch.arange(tokens.shape[1]), (mask.sum(1, keepdim=True) + 1) // 2
    first = mask & (place < middle)
    second = mask & (place >= torch.minimum(middle, mask.sum(1, keepdim=True) - 1))
    moved = second.long().argsort(dim=1, descending=True, stable=True)  # shift the second half to the front
    return (tokens, first), (tokens.gather(1, moved), second.gather(1, moved))


def decoded(view: View, evaluator: Evaluator) -> list[str]:
    """Token ids decoded to texts, for the word-based baseline."""
    words = evaluator.tokenizer
    return ["" if words is None else words.decode(row[real].tolist()) for row, real in zip(*view, strict=True)]


def hits(first: Tensor, second: Tensor) -> Tensor:
    """Whether each vector (N,D) is nearest to its own partner among 64: 1, or its share of a tie (N,)."""
    found = []
    for a, b in zip(first.split(AMONG), second.split(AMONG), strict=True):
        cosines = a @ b.T
        own = cosines.diagonal()[:, None]
        is_nearest = (cosines > own).sum(1) == 0
        found.append(is_nearest.double() / (cosines == own).sum(1))
    return torch.cat(found)


def tfidf(fitted: Sequence[str], first: Sequence[str], second: Sequence[str]) -> list[np.ndarray] | None:
    """Normalised TF-IDF rows (N,F) of two lists of texts; None without scikit-learn."""
    try:
        from sklearn.feature_extraction.text import TfidfVectorizer
    except ImportError:
        return None
    counter = TfidfVectorizer(max_features=20_000, token_pattern=r"\w+", sublinear_tf=True)
    try:
        counter.fit(fitted)
    except ValueError:  # no words
        return None
    return [counter.transform(side).toarray() for side in (first, second)]


def scored_pairs(frame: Frame) -> tuple[list[str], list[str], np.ndarray] | None:
    """The two text columns and the score column of an STS file; None for any other file."""
    facts = look(frame, {})
    written = [name for name in frame.names if facts[name].column.is_text]
    others = [numbers(frame.column(name)) for name in frame.names if name not in written]
    scores = [column for column in others if np.isfinite(column).all()]
    if len(written) != 2 or len(scores) != 1:
        return None
    return texts(frame.column(written[0])), texts(frame.column(written[1])), scores[0]

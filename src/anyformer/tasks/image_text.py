"""Image-text pretraining without labels, on pixels: the objectives of VisualBERT and UNITER."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from anyformer.core.model import Model
from anyformer.data.columns.base import empty
from anyformer.data.columns.look import Facts
from anyformer.data.datasets.rows import RowExamples
from anyformer.data.decision import Decision, Input, name_of
from anyformer.data.examples import Examples
from anyformer.data.frame import Frame
from anyformer.data.settings import Data, ImageSettings, TokenizerSettings
from anyformer.data.sizes import Sizes
from anyformer.data.targets import SelfSupervised
from anyformer.embeds import Joint, Patches, Tokens
from anyformer.errors import UserError
from anyformer.evaluation.answers import Answers
from anyformer.evaluation.baseline_rows import RawRows
from anyformer.heads import LM, ImageTextHead, LMWithPair, PixelHead
from anyformer.objectives import ImageText, Objective
from anyformer.objectives.draw import EVALUATION
from anyformer.objectives.objective import IGNORED
from anyformer.slots import Embed, Network
from anyformer.tasks.evaluator import sort_back
from anyformer.tasks.habits import FINE_TUNE, TrainingDefaults
from anyformer.tasks.network import embedding, keep_trained_embedding, parts_of, require_model, size_for, unfit
from anyformer.tasks.row_task import RowTask
from anyformer.tasks.target_look import Match, TargetLook

if TYPE_CHECKING:
    from anyformer.tasks.evaluator import Evaluator


class ImageTextTask(RowTask):
    """A model that reads an image and a text together; `--from` then fine-tunes a classifier of both from it."""

    name = "image-text"
    title = "image and text model"
    verb = "tells whether an image and a text belong together"
    objective = ImageText
    draws_anew = True
    needs = ("PIL",)
    has_target = False
    max_eval_rows = 2048
    smaller_is_better = ("words_loss", "patches_loss", "match_loss")
    reads = "a model of images and text reads one column of each"
    unread = "only one image and one text are read"

    # ------------------------------------------------------------ data

    def default_data(self, network: Network | None) -> Data:
        """Images augmented by shifts only, since a text may name colours and sides; a tokenizer with a mask token."""
        return Data(images=ImageSettings(flip=False, randaugment=0), tokenizer=TokenizerSettings(kind="wordpiece"))

    def match(self, seen: TargetLook, *, asked: bool) -> Match | None:
        return None

    def decide_without_target(
        self, frame: Frame, facts: Mapping[str, Facts], settings: Data, *, asked: bool
    ) -> Decision | None:
        from anyformer.tasks.decide import refuse_named

        if not asked:
            return None
        chosen = [name for name in frame.names if settings.inputs is None or name in settings.inputs]
        images = [name for name in chosen if facts[name].column.is_image]
        texts = [name for name in chosen if facts[name].column.is_text]
        if len(images) != 1 or len(texts) != 1:
            what = f"{len(images)} columns of images and {len(texts)} of text"
            fix = "name one of each with --inputs; texts that come again need --types NAME=text"
            raise UserError(what, where=name_of(frame), fix=fix)
        read = (*images, *texts)
        others = [name for name in frame.names if name not in read]
        refuse_named(settings, others, self.reads)
        inputs = tuple(Input(name, facts[name].kind, facts[name]) for name in read)
        return Decision(self, (), inputs, dropped=tuple((name, self.unread) for name in others))

    def target_problems(self, frame: Frame, decision: Decision) -> list[tuple[str, np.ndarray]]:
        """A row needs both an image and a text."""
        return [(f"no {column.column.noun.split()[-1]}", empty(frame, column.name)) for column in decision.inputs]

    def fit_target(
        self, frame: Frame, decision: Decision, settings: Data, labels: Sequence[str] | None
    ) -> SelfSupervised:
        return SelfSupervised(names=tuple(column.name for column in decision.inputs))

    # ------------------------------------------------------------ the model

    def default_preset(self, sizes: Sizes, *, gpu: bool) -> str:
        return f"encoder-{size_for(gpu)}"

    def fit_network(self, spec: Network, name: str, sizes: Sizes) -> Network:
        made = require_model(spec, name, self, sizes)
        made = made.replace(embed=read_patches(made.embed))
        embed = embedding(made, name, sizes)
        patches = patches_of(embed)
        if patches is None or made.stack.causal:
            raise unfit(name, "does not read an image beside a text in both directions", "encoder-mini")
        assert isinstance(embed, Joint)
        fitted = embed.replace(
            parts=tuple(patches.replace(masked=True) if part == patches else part for part in embed.parts)
        )
        values = patches.channels * patches.cell[0] * patches.cell[1]
        own = made.head.words if isinstance(made.head, LMWithPair | ImageTextHead) else made.head
        words = own if isinstance(own, LM) else LM(tied=True, bias=True)
        return made.replace(embed=fitted, head=ImageTextHead(patches=PixelHead(values=values), words=words))

    def adapt_network(self, spec: Network, name: str, sizes: Sizes) -> Network:
        made = require_model(self.fit_network(spec, name, sizes), name, self, sizes)
        trained = require_model(spec, name, self, sizes).embed
        return made.replace(embed=keep_trained_embedding(made.embed, trained))

    def fit_objective(self, objective: Objective, spec: Network) -> Objective:
        assert isinstance(objective, ImageText) and isinstance(spec, Model)
        patches = patches_of(spec.embed)
        assert patches is not None
        return objective.replace(patch=patches.cell)

    def habit(self, sizes: Sizes, *, start: bool) -> TrainingDefaults:
        if start:
            return FINE_TUNE
        return TrainingDefaults(epochs=60, batch_size=32, lr=1e-3, weight_decay=0.01, gpu_batch_size=128, gpu_lr=5e-4)

    def next_command(self, run: Path) -> str:
        return f"anyformer train labelled.csv --target label --from {run}"

    # ------------------------------------------------------------ evaluation

    def answer(
        self, evaluator: Evaluator, model: nn.Module, examples: Examples, rows: np.ndarray, *, decode: bool
    ) -> Answers:
        """The loss of each row by its objective; with `decode` also how well each image matches its own text."""
        assert isinstance(examples, RowExamples) and isinstance(evaluator.objective, ImageText)
        device = next(model.parameters()).device
        found: dict[str, list[np.ndarray]] = {}
        order, together = [], []
        for start in range(0, len(rows), evaluator.batch_size):
            batch = examples.batch(rows[start : start + evaluator.batch_size])
            asked = evaluator.objective.corrupt(batch, EVALUATION, examples).to(device)
            with evaluator.autocast:
                terms = evaluator.objective.terms(model, asked)
                fits = model(*batch.to(device).inputs, **batch.to(device).named).pooled if decode else None
            for name in ("rows", "words", "patches", "match", "right"):
                found.setdefault(name, []).append(getattr(terms, name).double().cpu().numpy())
            found.setdefault("asks_match", []).append((asked.targets[:, 0] != IGNORED).cpu().numpy())
            found.setdefault("asks_patches", []).append(asked.inputs[1][1].any(1).cpu().numpy())
            together += [] if fits is None else [fits.float().softmax(-1)[:, 0].cpu().numpy()]
            order.append(batch.rows.numpy())
        values = {name: sort_back(parts, order) for name, parts in found.items()}
        fit = sort_back(together, order) if decode else None
        return Answers(self.name, values, fit, losses=values["rows"], examples=examples)

    def compute_metrics(self, answers: Answers) -> dict[str, float]:
        if answers.losses is None or not len(answers.losses):
            return {}
        return {"loss": float(answers.losses.mean())} | shares_of(answers.truth)

    def all_metrics(self, answers: Answers) -> dict[str, float]:
        return self.metrics(answers)

    def main_metric(self, *, multi: bool = False, labels: Sequence[str] = ()) -> str:
        return "loss"

    def has_truth(self, answers: Answers) -> np.ndarray:
        return np.ones(len(answers.truth["rows"]), bool)

    # ------------------------------------------------------------ baselines

    def truth(self, examples: Examples) -> Any:
        """The frequency of each token in the training texts."""
        assert isinstance(examples, RowExamples)
        return np.bincount(examples.padded("tokens", examples.rows, examples.pad)[0].numpy().ravel())

    def raw_rows(self, examples: Examples) -> RawRows:
        return RawRows()

    def trivial_baseline(
        self, truth: Any, answers: Answers, train: RawRows, test: RawRows
    ) -> tuple[str, dict[str, float]]:
        """The loss without any input: words by frequency, patches by their mean, matches at chance."""
        values = answers.truth
        counts = np.asarray(truth, np.float64) + 1
        tokens = answers.examples.padded("tokens", answers.examples.rows, answers.examples.pad)[0].numpy()
        word = float(-np.log(counts / counts.sum())[np.minimum(tokens, len(counts) - 1)].mean())
        guessed = np.where(values["asks_match"] > 0, math.log(2), np.where(values["asks_patches"] > 0, 1.0, word))
        return "guessing without looking", {"loss": float(guessed.mean())}

    def strong_baseline(
        self, truth: Any, answers: Answers, train: RawRows, test: RawRows, *, seed: int = 0
    ) -> tuple[str, dict[str, float]]:
        return "no simple learner is known for this", {}

    def strong_in_time(
        self, truth: Any, answers: Answers, train: RawRows, test: RawRows, seconds: float | None
    ) -> tuple[str, dict[str, float]]:
        return self.strong_baseline(truth, answers, train, test)

    # ------------------------------------------------------------ the report and new rows

    def facts(self, answers: Answers) -> dict[str, Any]:
        return {"rows": len(answers.truth["rows"])}

    def describe(self, answers: Answers, row: int) -> dict[str, Any]:
        return {}

    def predictions(self, answers: Answers) -> list[Any]:
        """The probability that an image and its text match."""
        return [round(float(share), 6) for share in answers.predicted]


def read_patches(embed: Embed) -> Embed:
    """Embed words and image patches, which can be masked, instead of the regions that VisualBERT reads."""
    parts = parts_of(embed)
    words = next((part for part in parts if isinstance(part, Tokens)), None)
    if words is None or any(isinstance(part, Patches) for part in parts):
        return embed
    read = (words, Patches(size=32, patch=4, cls=False))
    return embed.replace(parts=read) if isinstance(embed, Joint) else Joint(parts=read)


def patches_of(embed: Any) -> Patches | None:
    """The patch embedding of a joint embedding."""
    parts = embed.parts if isinstance(embed, Joint) else ()
    return next((part for part in parts if isinstance(part, Patches)), None)


def shares_of(values: Mapping[str, np.ndarray]) -> dict[str, float]:
    """The mean loss of each objective over its rows, and the matching accuracy."""
    match, patches = values["asks_match"] > 0, values["asks_patches"] > 0
    groups = {"words": ~match & ~patches, "patches": patches, "match": match}
    found = {f"{name}_loss": float(values[name][rows].mean()) for name, rows in groups.items() if rows.any()}
    return found | ({"match_accuracy": float(values["right"][match].mean())} if match.any() else {})

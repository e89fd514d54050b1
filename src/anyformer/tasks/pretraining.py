"""Pretraining on running text: a part of it is hidden, and the model is asked for it. One file a task beside this one.

What is hidden, and how it is asked, is the objective's (`Objective.corrupt`); the text is cut into `Blocks`. A task of
this kind is the base class here with a name, an objective, the networks that it fits, and what it says of new text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from torch import Tensor, nn

from anyformer.data.columns.text import embed_tokens
from anyformer.data.datasets.blocks import Blocks
from anyformer.data.datasets.windows import Windows
from anyformer.data.examples import Examples
from anyformer.data.sizes import Sizes
from anyformer.embeds import Tokens
from anyformer.evaluation.answers import Answers
from anyformer.evaluation.baseline_rows import RawRows
from anyformer.evaluation.metrics import language_metrics
from anyformer.heads import LM
from anyformer.objectives.objective import IGNORED
from anyformer.slots import Network
from anyformer.tasks.evaluator import sort_back
from anyformer.tasks.habits import FINE_TUNE, Habit
from anyformer.tasks.network import is_own, require_model, size_for, unfit
from anyformer.tasks.running_text import RunningTextTask

if TYPE_CHECKING:
    from anyformer.tasks.evaluator import Evaluator


class PretrainingTask(RunningTextTask):
    """A model that learns from text by naming what is hidden from it."""

    rows: ClassVar[type[Windows]] = Blocks

    def habit(self, sizes: Sizes, *, start: bool) -> Habit:
        if start:
            return FINE_TUNE
        return Habit(epochs=20, batch_size=16, lr=1e-3, weight_decay=0.01, gpu_batch_size=64, gpu_lr=5e-4)

    # ------------------------------------------------------------ evaluation

    def answer(
        self, evaluator: Evaluator, model: nn.Module, examples: Examples, rows: np.ndarray, *, decode: bool
    ) -> Answers:
        """Summed nats of the hidden tokens, and how many of them the model names first."""
        nats, tokens, right = 0.0, 0, 0
        losses, order = [], []
        for batch, out in evaluator.passes(model, examples, rows):
            each = evaluator.objective.row_losses(out, batch).double().cpu()
            asked = batch.targets != IGNORED
            counted = asked.sum(1).cpu()
            nats += float((each * counted).sum())
            tokens += int(counted.sum())
            right += self.count_right(out.logits, batch.targets, asked)
            losses.append(each.numpy())
            order.append(batch.rows.numpy())
        extra = {"accuracy": right / tokens} if tokens else {}
        return Answers(
            self.name, nats=nats, tokens=tokens, examples=examples, losses=sort_back(losses, order), extra=extra
        )

    def count_right(self, logits: Tensor, targets: Tensor, asked: Tensor) -> int:
        """How many of the targets that are asked for the logits name first."""
        return int(((logits.argmax(-1) == targets) & asked).sum())

    def compute_metrics(self, answers: Answers) -> dict[str, float]:
        return language_metrics(answers)

    # ------------------------------------------------------------ baselines

    def trivial_baseline(
        self, truth: Any, answers: Answers, train: RawRows, test: RawRows
    ) -> tuple[str, dict[str, float]]:
        """A model that knows only how frequent each token is in training; one is added to every count."""
        name = "guessing tokens by their frequency"
        if train.tokens is None or test.tokens is None or not len(test.tokens):
            return name, {}
        size = int(max(train.tokens.max(initial=0), test.tokens.max())) + 1
        counts = np.bincount(train.tokens, minlength=size) + 1.0
        nats = float(-np.log(counts / counts.sum())[test.tokens].mean())
        frequent = float((test.tokens == counts.argmax()).mean())
        said = Answers(self.name, nats=nats * answers.tokens, tokens=answers.tokens, extra={"accuracy": frequent})
        return name, self.metrics(said)

    def strong_baseline(
        self, truth: Any, answers: Answers, train: RawRows, test: RawRows, *, seed: int = 0
    ) -> tuple[str, dict[str, float]]:
        return "no simple learner is known for this", {}


class EncoderPretraining(PretrainingTask):
    """A model that reads the whole text at once and scores the vocabulary at every place."""

    def default_preset(self, sizes: Sizes, *, gpu: bool) -> str:
        return f"encoder-{size_for(gpu)}"

    def fit_network(self, spec: Network, name: str, sizes: Sizes) -> Network:
        made = require_model(spec, name, self, sizes)
        if is_own(made.embed, sizes):
            embed = made.embed.fit_data(sizes)
        elif isinstance(made.embed, Tokens) and not made.stack.causal:
            embed = embed_tokens(made.embed, sizes)
        else:
            raise unfit(name, "does not read text in both directions", "encoder-mini")
        fitted = made.replace(embed=embed)
        return fitted.replace(head=made.head if isinstance(made.head, LM) else word_head(fitted))

    def adapt_network(self, spec: Network, name: str, sizes: Sizes) -> Network:
        made = require_model(self.fit_network(spec, name, sizes), name, self, sizes)
        return made.replace(embed=require_model(spec, name, self, sizes).embed)


def word_head(spec: Any) -> LM:
    """A head that names words in the style of a network: BERT and its relatives put a dense layer with a norm first."""
    norm = spec.embed.norm if isinstance(spec.embed, Tokens) else None
    if norm is None:
        return LM(tied=True)
    return LM(tied=True, transform=spec.stack.block.feed.act, norm=norm, bias=True)

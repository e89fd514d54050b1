"""Pretraining on running text: a part of it is hidden, and the model predicts it. Each task has a file beside this one.

What is hidden, and how, is defined by the objective (`Objective.corrupt`); the text is cut into `Blocks`. Such a task
is the base class here with a name, an objective, the networks that it fits, and its predictions for new text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.core.activation import Act
from anyformer.data.columns.text import embed_tokens
from anyformer.data.datasets.blocks import Blocks
from anyformer.data.datasets.corpus import TaskTokens
from anyformer.data.datasets.windows import Windows
from anyformer.data.examples import Examples
from anyformer.data.preprocess import Preprocess
from anyformer.data.sizes import Sizes
from anyformer.embeds import Tokens
from anyformer.evaluation import token_frequencies
from anyformer.evaluation.answers import Answers
from anyformer.evaluation.baseline_rows import RawRows
from anyformer.evaluation.facts import short
from anyformer.evaluation.metrics import language_metrics
from anyformer.evaluation.neighbours import NeighbourCounts
from anyformer.evaluation.token_frequencies import guess_by_frequency
from anyformer.feeds import MLP, Experts
from anyformer.heads import LM, LMWithPair
from anyformer.objectives import Batch
from anyformer.objectives.objective import IGNORED
from anyformer.slots import Network
from anyformer.tasks.evaluator import sort_back
from anyformer.tasks.gaps import TEXT, text_of
from anyformer.tasks.habits import FINE_TUNE, TrainingDefaults
from anyformer.tasks.network import is_own, require_model, size_for, unfit
from anyformer.tasks.running_text import RunningTextTask

if TYPE_CHECKING:
    from anyformer.tasks.evaluator import Evaluator


FEWEST = 3  # shortest text in which a token has a neighbour on either side


@dataclass
class HiddenTokens:
    """Every token that was hidden in an evaluation, in the order of prediction."""

    row: np.ndarray  # (N,) its row
    token: np.ndarray  # (N,) the true token
    named: np.ndarray  # (N,) the model's top prediction
    left: np.ndarray | None = None  # (N,) the token before it in the input, -1 at the beginning of a row
    right: np.ndarray | None = None  # (N,) the token after it

    @classmethod
    def join(cls, parts: Sequence[HiddenTokens]) -> HiddenTokens:
        """Concatenate those of several passes."""
        if not parts:
            return cls(*(np.zeros(0, np.int64) for _ in range(3)))
        return cls(*(joined([getattr(part, each.name) for part in parts]) for each in fields(cls)))

    def __len__(self) -> int:
        """Number of rows with hidden tokens."""
        return len(np.unique(self.row))

    def of_row(self, row: int) -> tuple[list[int], list[int]]:
        """The hidden tokens of a row, and the model's predictions."""
        here = self.row == row
        return self.token[here].tolist(), self.named[here].tolist()


def joined(columns: Sequence[np.ndarray | None]) -> Any:
    """Concatenate columns, or None if there are none."""
    known = [column for column in columns if column is not None]
    return np.concatenate(known) if known else None


class PretrainingTask(RunningTextTask):
    """A model trained to predict tokens that are hidden from it."""

    rows: ClassVar[type[Windows]] = Blocks
    draws_anew = True

    def habit(self, sizes: Sizes, *, start: bool) -> TrainingDefaults:
        if start:
            return FINE_TUNE
        return TrainingDefaults(epochs=20, batch_size=16, lr=1e-3, weight_decay=0.01, gpu_batch_size=64, gpu_lr=5e-4)

    # ------------------------------------------------------------ evaluation

    def answer(
        self, evaluator: Evaluator, model: nn.Module, examples: Examples, rows: np.ndarray, *, decode: bool
    ) -> Answers:
        """Summed negative log-likelihood of the hidden tokens, and the top-1 accuracy."""
        nats, tokens = 0.0, 0
        losses, order = [], []
        hidden: list[HiddenTokens] = []
        counts: dict[str, np.ndarray] = {}
        for batch, out in evaluator.passes(model, examples, rows):
            each = evaluator.objective.row_losses(out, batch).double().cpu()
            counted = (batch.targets != IGNORED).sum(1).cpu()
            nats += float((each * counted).sum())
            tokens += int(counted.sum())
            hidden.append(self.read_hidden(batch, out.logits))
            for name, count in self.count_right(out, batch).items():
                counts[name] = counts.get(name, np.zeros(2)) + count
            losses.append(each.numpy())
            order.append(batch.rows.numpy())
        extra = {name: float(right / asked) for name, (right, asked) in counts.items() if asked}
        return Answers(
            self.name, HiddenTokens.join(hidden), nats=nats, tokens=tokens, examples=examples,
            losses=sort_back(losses, order), extra=extra,
        )  # fmt: skip

    def count_right(self, out: Any, batch: Batch) -> dict[str, tuple[int, int]]:
        """By metric, the number of correct predictions of a pass and the number of targets."""
        asked = batch.targets != IGNORED
        right = int(((out.logits.argmax(-1) == batch.targets) & asked).sum())
        return {"accuracy": (right, int(asked.sum()))}

    def read_hidden(self, batch: Batch, logits: Tensor) -> HiddenTokens:
        """The hidden tokens and the model's predictions."""
        asked = batch.targets != IGNORED
        rows = batch.rows[asked.nonzero()[:, 0].cpu()].numpy()
        return HiddenTokens(rows, batch.targets[asked].cpu().numpy(), logits.argmax(-1)[asked].cpu().numpy())

    def compute_metrics(self, answers: Answers) -> dict[str, float]:
        return language_metrics(answers)

    # ------------------------------------------------------------ baselines

    def trivial_baseline(
        self, truth: Any, answers: Answers, train: RawRows, test: RawRows
    ) -> tuple[str, dict[str, float]]:
        if train.tokens is None or test.tokens is None or not len(test.tokens):
            return token_frequencies.NAME, {}
        nats, frequent = guess_by_frequency(train.tokens, test.tokens)
        right = {"accuracy": float((test.tokens == frequent).mean())}
        return token_frequencies.NAME, self.metrics(
            Answers(self.name, nats=nats * answers.tokens, tokens=answers.tokens, extra=right)
        )

    def strong_baseline(
        self, truth: Any, answers: Answers, train: RawRows, test: RawRows, *, seed: int = 0
    ) -> tuple[str, dict[str, float]]:
        return "no simple learner is known for this", {}

    # ------------------------------------------------------------ the report

    def facts(self, answers: Answers) -> dict[str, Any]:
        return {"hidden": int(answers.tokens)}

    def describe(self, answers: Answers, row: int) -> dict[str, Any]:
        """The hidden tokens of a row, and the model's predictions."""
        if not isinstance(answers.truth, HiddenTokens) or not isinstance(answers.examples, Windows):
            return {}
        tokenizer = answers.examples.tokenizer
        spelled = [" ".join(str(n) if tokenizer is None else tokenizer.token(n) for n in side)
                   for side in answers.truth.of_row(row)]  # fmt: skip
        return {"truth": short(spelled[0]), "predicted": short(spelled[1])}


class EncoderPretraining(PretrainingTask):
    """An encoder that reads the whole text at once and predicts at every position."""

    tokens = TaskTokens(roles=("cls", "sep", "mask"))
    answers_texts = True
    asked_for: ClassVar[str]  # noun for the texts of a request, and an example
    example_text: ClassVar[str]

    def default_preset(self, sizes: Sizes, *, gpu: bool) -> str:
        return f"encoder-{size_for(gpu)}"

    def read_hidden(self, batch: Batch, logits: Tensor) -> HiddenTokens:
        """Also with the neighbours of each token, as in the model's input."""
        found = super().read_hidden(batch, logits)
        framed = F.pad(batch.inputs[0], (1, 1), value=-1)  # (B, T+2)
        asked = batch.targets != IGNORED
        found.left, found.right = (side[asked].cpu().numpy() for side in (framed[:, :-2], framed[:, 2:]))
        return found

    def strong_baseline(
        self, truth: Any, answers: Answers, train: RawRows, test: RawRows, *, seed: int = 0
    ) -> tuple[str, dict[str, float]]:
        """Counts of tokens between the same two neighbours in training."""
        name, hidden = "counts of the two neighbours", answers.truth
        if train.tokens is None or len(train.tokens) < FEWEST or not isinstance(hidden, HiddenTokens):
            return "no text to count neighbours in", {}
        if hidden.left is None or hidden.right is None or not len(hidden.token):
            return "no hidden tokens with neighbours", {}
        seen = (train.tokens, hidden.token, hidden.left, hidden.right)
        counts = NeighbourCounts(train.tokens, max(int(side.max()) for side in seen) + 1)
        found = counts.score(hidden.token, hidden.left, hidden.right)
        said = Answers(self.name, nats=found.loss * answers.tokens, tokens=answers.tokens,
                       extra={"accuracy": found.accuracy})  # fmt: skip
        return name, self.metrics(said)

    def fit_network(self, spec: Network, name: str, sizes: Sizes) -> Network:
        made = require_model(spec, name, self, sizes)
        if is_own(made.embed, sizes):
            embed = made.embed.fit_data(sizes)
        elif isinstance(made.embed, Tokens) and not made.stack.causal:
            embed = embed_tokens(made.embed, sizes)
        else:
            raise unfit(name, "does not read text in both directions", "encoder-mini")
        fitted = made.replace(embed=embed)
        own = made.head.words if isinstance(made.head, LMWithPair) else made.head
        return fitted.replace(head=own if isinstance(own, LM) else word_head(fitted))

    def adapt_network(self, spec: Network, name: str, sizes: Sizes) -> Network:
        made = require_model(self.fit_network(spec, name, sizes), name, self, sizes)
        return made.replace(embed=require_model(spec, name, self, sizes).embed)

    def parse_request(self, row: Any, preprocess: Preprocess) -> Any | None:
        return text_of(row)

    def describe_request(self, preprocess: Preprocess) -> str:
        return f'{self.asked_for}, bare or as {{"{TEXT}": ...}}'

    def example_request(self, preprocess: Preprocess) -> Any | None:
        return self.example_text


def word_head(spec: Any) -> LM:
    """A language-model head in the style of a network: BERT and its relatives put a dense layer with a norm first."""
    norm = spec.embed.norm if isinstance(spec.embed, Tokens) else None
    if norm is None:
        return LM(tied=True)
    act = activation_of(spec)
    return LM(tied=True) if act is None else LM(tied=True, transform=act, norm=norm, bias=True)


def activation_of(spec: Any) -> Act | None:
    """The activation of a network's feed-forward layers, also used in its head; None if its blocks have none."""
    feed = spec.plain_stack.tiles[0].feed
    return feed.act if isinstance(feed, MLP | Experts) else None

"""Replaced token detection: a discriminator detects which tokens a small generator has replaced (ELECTRA)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from anyformer.data.datasets.blocks import Blocks
from anyformer.data.examples import Examples
from anyformer.data.given_rows import OnBadRows
from anyformer.data.prepared import Prepared
from anyformer.data.settings import Data
from anyformer.data.sizes import Sizes
from anyformer.evaluation.answers import Answers
from anyformer.evaluation.baseline_rows import RawRows
from anyformer.evaluation.facts import short
from anyformer.evaluation.metrics import auc
from anyformer.evaluation.neighbours import MOST_SCORED, NeighbourCounts
from anyformer.heads import Replaced
from anyformer.log import Log
from anyformer.nets.electra import Electra, ElectraModule
from anyformer.objectives import Batch, ReplacedByGenerator
from anyformer.objectives.draw import EVALUATION
from anyformer.objectives.objective import IGNORED
from anyformer.slots import Network
from anyformer.tasks.evaluator import sort_back
from anyformer.tasks.gaps import TEXT, read_texts
from anyformer.tasks.network import require_model, unfit
from anyformer.tasks.pretraining import FEWEST, EncoderPretraining, activation_of
from anyformer.tasks.suspects import find_suspects
from anyformer.tasks.trained_model import TrainedModel

if TYPE_CHECKING:
    from anyformer.tasks.evaluator import Evaluator

logger = logging.getLogger("anyformer")
STREAM = 2**33  # offset of the random streams for sampling in evaluation, apart from those for masking


@dataclass
class ScoredTokens:
    """Every token of an evaluation, special tokens included: the input, and whether it is a replacement."""

    row: np.ndarray  # (N,) its row
    token: np.ndarray  # (N,) the discriminator's input
    replaced: np.ndarray  # (N,) 1 if it differs from the original
    score: np.ndarray  # (N,) the discriminator's logit
    left: np.ndarray  # (N,) the token before it, -1 at the beginning
    right: np.ndarray  # (N,) the token after it

    def __len__(self) -> int:
        """Number of rows that were scored."""
        return len(np.unique(self.row))


class ReplacedTask(EncoderPretraining):
    """A discriminator of replaced tokens, and the generator it is trained with."""

    name = "replaced"
    title = "replaced-token detection"
    verb = "tells replaced tokens"
    objective = ReplacedByGenerator
    asked_for = "a text"
    example_text = "The cat sat on the mat."
    smaller_is_better = ("generator_loss",)

    # ------------------------------------------------------------ the model and its training

    def default_preset(self, sizes: Sizes, *, gpu: bool) -> str:
        return "electra-small" if gpu else "electra-small-tiny"

    def fit_network(self, spec: Network, name: str, sizes: Sizes) -> Network:
        """The encoder as discriminator, with a generator beside it."""
        own = require_model(spec, name, self, sizes)
        encoder = require_model(super().fit_network(own, name, sizes), name, self, sizes)
        act = activation_of(encoder)
        if act is None:
            raise unfit(name, "has blocks without a feed, whose activation its head would take", "electra-small-tiny")
        share = spec.share if isinstance(spec, Electra) else Electra.share
        return Electra(discriminator=encoder.replace(head=Replaced(act=act)), share=share)

    def adapt_network(self, spec: Network, name: str, sizes: Sizes) -> Network:
        made = self.fit_network(spec, name, sizes)
        assert isinstance(made, Electra)
        embed = require_model(spec, name, self, sizes).embed
        return made.replace(discriminator=made.discriminator.replace(embed=embed))

    @torch.no_grad()
    def write_sample(self, model: nn.Module, data: Prepared, *, seed: int) -> str | None:
        """The beginning of the validation text with replacements, and those that the discriminator detects."""
        valid, tokenizer = data.valid, data.tokenizer
        if not isinstance(valid, Blocks) or tokenizer is None or not isinstance(model, ElectraModule):
            return None
        objective = ReplacedByGenerator()
        batch = objective.corrupt(valid.batch([0]), EVALUATION, valid).to(next(model.parameters()).device)
        made = objective.replace_tokens(model, batch, draw_waits(batch, model))
        found = model(made.tokens, **batch.named).logits[0, :, 0] > 0
        lines = [tokenizer.decode(made.tokens[0].tolist())]
        for place in made.targets[0].eq(1).nonzero()[:, 0].tolist():
            was = batch.targets[0, place] if batch.targets[0, place] != IGNORED else batch.inputs[0][0, place]
            said = "found" if found[place] else "missed"
            lines.append(f"{tokenizer.token(int(was))} -> {tokenizer.token(int(made.tokens[0, place]))}: {said}")
        return "\n".join(lines)

    def next_command(self, run: Path) -> str:
        return f"anyformer predict {run} new.txt"

    # ------------------------------------------------------------ evaluation

    @torch.no_grad()
    def answer(
        self, evaluator: Evaluator, model: nn.Module, examples: Examples, rows: np.ndarray, *, decode: bool
    ) -> Answers:
        """The discriminator's logits and the targets, on texts with tokens replaced by the generator."""
        objective = evaluator.objective
        assert isinstance(model, ElectraModule) and isinstance(objective, ReplacedByGenerator)
        device = next(model.parameters()).device
        parts: list[list[np.ndarray]] = []
        losses, order, generator = [], [], np.zeros(3)
        for start in range(0, len(rows), evaluator.batch_size):
            batch = examples.batch(rows[start : start + evaluator.batch_size])
            batch = objective.corrupt(batch, EVALUATION, examples).to(device)
            with evaluator.autocast:
                made = objective.replace_tokens(model, batch, draw_waits(batch, model))
                out = model(made.tokens, **batch.named)
            scored = replace(batch, targets=made.targets)
            losses.append(objective.row_losses(out, scored).double().cpu().numpy())
            order.append(batch.rows.numpy())
            asked = batch.targets != IGNORED
            right = (made.named == batch.targets) & asked
            generator += [float(made.words.sum()), int(right.sum()), int(asked.sum())]
            parts.append(columns_of(batch, made.tokens, made.targets, out.logits[..., 0].float()))
        found = ScoredTokens(*(np.concatenate(column) for column in zip(*parts, strict=True)))
        nats, named, hidden = generator.tolist()
        extra = {"generator_loss": nats / max(1, hidden), "generator_accuracy": named / max(1, hidden)}
        return Answers(
            self.name, found, tokens=len(found.row), examples=examples, losses=sort_back(losses, order), extra=extra
        )

    def compute_metrics(self, answers: Answers) -> dict[str, float]:
        """Of the discriminator: cross-entropy per token, and how well it detects replacements."""
        return {} if answers.truth is None else detection_metrics(answers.truth.replaced, answers.truth.score)

    def selection_metric(self, *, multi: bool = False, labels: Sequence[str] = ()) -> str:
        """The generator's: the better it gets, the harder its replacements, and the discriminator's loss rises."""
        return "generator_loss"

    # ------------------------------------------------------------ baselines

    def trivial_baseline(
        self, truth: Any, answers: Answers, train: RawRows, test: RawRows
    ) -> tuple[str, dict[str, float]]:
        """No token is predicted as replaced; the probability is always the frequency of replacements."""
        name, truth = "calling no token replaced", answers.truth
        if truth is None or not len(truth.replaced):
            return name, {}
        share = float(np.clip(truth.replaced.mean(), 1e-6, 1 - 1e-6))
        constant = np.full(len(truth.replaced), np.log(share / (1 - share)))
        return name, detection_metrics(truth.replaced, constant)

    def strong_baseline(
        self, truth: Any, answers: Answers, train: RawRows, test: RawRows, *, seed: int = 0
    ) -> tuple[str, dict[str, float]]:
        """A token is more suspect the rarer it was between its neighbours in training."""
        truth = answers.truth
        if train.tokens is None or len(train.tokens) < FEWEST or truth is None or not len(truth.replaced):
            return "no text to count neighbours in", {}
        chosen = np.linspace(0, len(truth.row) - 1, min(len(truth.row), MOST_SCORED)).astype(np.int64)
        size = int(max(train.tokens.max(), *(side.max() for side in (truth.token, truth.left, truth.right)))) + 1
        counts = NeighbourCounts(train.tokens, size)
        surprise = np.array(
            [-np.log(counts.shares(int(truth.left[at]), int(truth.right[at]))[truth.token[at]]) for at in chosen]
        )
        ranked = auc(truth.replaced[chosen] == 1, surprise)
        return "how seldom a token stood between its neighbours", {} if ranked is None else {"auc": ranked}

    # ------------------------------------------------------------ the report

    def facts(self, answers: Answers) -> dict[str, Any]:
        return {"tokens": int(answers.tokens), "replaced": int(answers.truth.replaced.sum())}

    def describe(self, answers: Answers, row: int) -> dict[str, Any]:
        """The replaced tokens of a row, and those predicted as replaced."""
        truth, tokenizer = answers.truth, getattr(answers.examples, "tokenizer", None)
        here = truth.row == row

        def spelled(chosen: np.ndarray) -> str:
            return " ".join(str(n) if tokenizer is None else tokenizer.token(n) for n in truth.token[chosen].tolist())

        return {"truth": short(spelled(here & (truth.replaced == 1))),
                "predicted": short(spelled(here & (truth.score > 0)))}  # fmt: skip

    # ------------------------------------------------------------ new texts

    def predict(
        self, predictor: TrainedModel, source: Any, *, batch_size: int, on_bad_rows: OnBadRows
    ) -> list[Any] | None:
        """The tokens of each text predicted as replaced."""
        return [found.suspects for found in find_suspects(predictor, read_texts(source), batch_size)]

    def prediction_table(
        self,
        predictor: TrainedModel,
        files: Sequence[Path],
        settings: Data,
        *,
        batch_size: int,
        on_bad_rows: OnBadRows,
        log: Log,
    ) -> Any | None:
        """One row per text: the tokens predicted as replaced, and the highest probability of a replacement."""
        import pyarrow as pa

        texts = read_texts(list(files))
        found = find_suspects(predictor, texts, batch_size)
        most = [max(one.probabilities, default=0.0) for one in found]
        return pa.table({TEXT: texts, "prediction": [one.suspects for one in found],
                         "probability": [round(share, 6) for share in most]})  # fmt: skip

    def answer_requests(self, rows: Sequence[Any], predictor: TrainedModel, *, batch_size: int) -> list[Any] | None:
        return [found.to_json() for found in find_suspects(predictor, rows, batch_size)]


def detection_metrics(replaced: np.ndarray, score: np.ndarray) -> dict[str, float]:
    """Cross-entropy, accuracy, F1 and AUC of logits (N,) that a token was replaced."""
    if not len(replaced):
        return {}
    truth, called = replaced == 1, score > 0
    loss = float(np.logaddexp(0.0, np.where(truth, -score, score)).mean())
    right, wrong = int((truth & called).sum()), int((truth != called).sum())
    found = {"loss": loss, "accuracy": float((truth == called).mean()), "f1": 2 * right / max(1, 2 * right + wrong)}
    ranked = auc(truth, score)
    return found if ranked is None else found | {"auc": ranked}


def draw_waits(batch: Batch, model: ElectraModule) -> Tensor:
    """Exponential waiting times (B,K,V) to sample with in evaluation: those of a row are the same in any batch."""
    shape = (batch.most_targets or batch.targets.shape[1], model.spec.embed.vocab)
    made = [EVALUATION.generator(STREAM + row).exponential(size=shape) for row in batch.rows.tolist()]
    return torch.from_numpy(np.stack(made).astype(np.float32)).to(next(model.parameters()).device)


def columns_of(batch: Batch, tokens: Tensor, targets: Tensor, scores: Tensor) -> list[np.ndarray]:
    """The columns of `ScoredTokens` of one batch."""
    real = targets != IGNORED
    framed = torch.nn.functional.pad(tokens, (1, 1), value=-1)
    rows = batch.rows[real.nonzero()[:, 0].cpu()]
    sides = (tokens, targets, scores, framed[:, :-2], framed[:, 2:])
    return [rows.numpy(), *(side[real].cpu().numpy() for side in sides)]

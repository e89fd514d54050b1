"""A model's answers on a whole data set, beside the truth."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from anyformer.data.columns.fitted import Sentence
from anyformer.data.datasets.detection import DetectionExamples
from anyformer.data.datasets.rows import RowExamples
from anyformer.data.datasets.series import SeriesExamples
from anyformer.data.datasets.windows import Windows
from anyformer.data.examples import Examples
from anyformer.data.preprocess import Preprocess
from anyformer.data.targets import Values
from anyformer.data.tokenizers.tokenizer import Tokenizer
from anyformer.evaluation.answers import Answers
from anyformer.generation import Generation, generate
from anyformer.generation.prompts import decoder_of, max_positions
from anyformer.objectives import Batch, Objective, Translate

STEP = 16  # tokens to which a source's length is rounded up, so that texts of about one length are written together


class Judge:
    """Asks a model about every row. `decode` also lets a translator write, which takes long."""

    def __init__(
        self,
        objective: Objective,
        preprocess: Preprocess,
        tokenizer: Tokenizer | None,
        *,
        batch: int,
        autocast: AbstractContextManager[Any] | None = None,
    ) -> None:
        self.objective, self.preprocess, self.tokenizer = objective, preprocess, tokenizer
        self.batch, self.autocast = batch, autocast or nullcontext()

    @torch.no_grad()
    def __call__(
        self, model: nn.Module, examples: Examples, *, most: int | None = None, decode: bool = True
    ) -> Answers:
        """Answers for all rows, or for `most` of them spread evenly over the data."""
        count = len(examples)
        rows = np.arange(count) if most is None or most >= count else np.linspace(0, count - 1, most).astype(np.int64)
        model.eval()
        task = self.preprocess.task
        if task == "lm":
            assert isinstance(examples, Windows)
            return self.language(model, examples, rows)
        if isinstance(examples, SeriesExamples):
            from anyformer.inference.forecasting import judged

            return judged(model, examples, rows, self.passes(model, examples, rows))
        if isinstance(examples, DetectionExamples):
            from anyformer.inference import detecting

            found = self.passes(model, examples, rows)
            return detecting.judged(examples, found, self.objective, self.preprocess.labels or ())
        assert isinstance(examples, RowExamples)
        if task == "tag":
            return self.tags(model, examples, rows)
        if task == "translate":
            return self.texts(model, examples, rows, decode)
        return self.rows(model, examples, rows)

    def passes(self, model: nn.Module, examples: Examples, rows: np.ndarray) -> Iterator[tuple[Batch, Any]]:
        """Batch by batch, what the model gives."""
        device = next(model.parameters()).device
        lengths = examples.lengths
        order = rows if lengths is None else rows[np.argsort(lengths[rows], kind="stable")]
        for start in range(0, len(order), self.batch):
            batch = examples.batch(order[start : start + self.batch]).to(device)
            with self.autocast:
                yield batch, model(*batch.inputs, **batch.named)

    def summed(self, model: nn.Module, examples: Examples, rows: np.ndarray) -> tuple[float, int, np.ndarray]:
        """Nats and number of all tokens to predict, and the mean of each row."""
        nats, tokens, losses, order = 0.0, 0, [], []
        for batch, out in self.passes(model, examples, rows):
            each = self.objective.row_losses(out, batch).double().cpu()
            counted = (batch.targets != -100).sum(1).cpu()
            nats += float((each * counted).sum())
            tokens += int(counted.sum())
            losses.append(each.numpy())
            order.append(batch.rows.numpy())
        return nats, tokens, sorted_back(losses, order, rows)

    def language(self, model: nn.Module, examples: Windows, rows: np.ndarray) -> Answers:
        """Summed nats over the windows; the very first token, which nothing comes before, is no target."""
        nats, tokens, losses = self.summed(model, examples, rows)
        whole = len(rows) == len(examples)
        share = 1.0 if whole else tokens / max(1, examples.tokens - 1)
        return Answers(
            "lm", nats=nats, tokens=tokens, bytes=round(examples.bytes * share), examples=examples,
            losses=losses,
        )  # fmt: skip

    def rows(self, model: nn.Module, examples: RowExamples, rows: np.ndarray) -> Answers:
        """Classes or numbers."""
        logits, truth, losses, order = [], [], [], []
        for batch, out in self.passes(model, examples, rows):
            logits.append(out.logits.float().cpu())
            truth.append(batch.targets.cpu())
            losses.append(self.objective.row_losses(out, batch).float().cpu().numpy())
            order.append(batch.rows.numpy())
        back = np.argsort(np.concatenate(order), kind="stable")
        raw, wanted = torch.cat(logits)[back], torch.cat(truth)[back].numpy()
        common: dict[str, Any] = {"losses": np.concatenate(losses)[back], "examples": examples}
        target = self.preprocess.target
        if isinstance(target, Values):
            found = raw.numpy() if len(target.names) > 1 else raw.numpy()[:, 0]
            return Answers("regress", target.undo(wanted), target.undo(found), labels=list(target.names), **common)
        labels = list(self.preprocess.labels or ())
        if self.preprocess.multi:
            share = raw.sigmoid().numpy()
            return Answers("classify", wanted.astype(np.int64), (share > 0.5).astype(np.int64), share, labels,
                           multi=True, **common)  # fmt: skip
        share = raw.softmax(-1).numpy()
        return Answers("classify", wanted, share.argmax(1), share, labels, **common)

    def tags(self, model: nn.Module, examples: RowExamples, rows: np.ndarray) -> Answers:
        """One tag a word; words cut off beyond the model's length get the tag that stands for none, or the first."""
        labels = list(self.preprocess.labels or ())
        missing = "O" if "O" in labels else labels[0]
        name = self.preprocess.target.names[0] if self.preprocess.target else "tags"
        found: dict[int, list[str]] = {}
        losses: dict[int, float] = {}
        for batch, out in self.passes(model, examples, rows):
            best = out.logits.argmax(-1).cpu().numpy()
            each = self.objective.row_losses(out, batch).float().cpu().tolist()
            for row, ids, loss in zip(batch.rows.tolist(), best, each, strict=True):
                found[row] = [labels[i] for i in ids[examples.begins(row)]]
                losses[row] = loss
        (sentence,) = self.preprocess.of(Sentence)
        truth, predicted = [], []
        for row in rows.tolist():
            cells = examples.cells(row)
            words = len(cells[sentence.name])
            predicted.append(found[row] + [missing] * (words - len(found[row])))
            truth.append(list(cells[name]) if name in cells else [missing] * words)
        return Answers("tag", truth, predicted, labels=labels, examples=examples,
                       losses=np.array([losses[row] for row in rows.tolist()]))  # fmt: skip

    def texts(self, model: nn.Module, examples: RowExamples, rows: np.ndarray, decode: bool) -> Answers:
        """The loss of the true text and, with `decode`, the text the model writes itself."""
        nats, tokens, losses = self.summed(model, examples, rows)
        answers = Answers("translate", nats=nats, tokens=tokens, examples=examples, losses=losses)
        if not decode:
            return answers
        name = self.preprocess.target.names[0] if self.preprocess.target else "target"
        known = name in examples.frame.names  # new texts come without
        truth = [str(examples.cells(row)[name]) for row in rows.tolist()] if known else None
        return replace(answers, truth=truth, predicted=self.written(model, examples, rows))

    def written(self, model: nn.Module, examples: RowExamples, rows: np.ndarray) -> list[str]:
        """What an encoder-decoder writes for each row, by beam search."""
        assert self.tokenizer is not None
        settings = decoding(self.objective, self.preprocess, self.tokenizer, model.spec)
        device = next(model.parameters()).device
        found: dict[int, str] = {}
        lengths = examples.lengths
        assert lengths is not None
        order = rows[np.argsort(lengths[rows], kind="stable")]
        # How long a text may get follows from its own source, not from the longest one beside it.
        longest = np.minimum(settings.max_new_tokens or 256, 2 * STEP * -(-lengths // STEP) + STEP)
        for chosen in batches_of_equals(order, longest, self.batch):
            batch = examples.batch(chosen).to(device)
            source, mask, most = batch.inputs[0], batch.named["source_mask"], int(longest[chosen[0]])
            result = generate(model, source, mask, settings=replace(settings, max_new_tokens=most))
            for row, ids in zip(batch.rows.tolist(), result.rows(), strict=True):
                found[row] = self.tokenizer.decode(ids)
        return [found[row] for row in rows.tolist()]


def batches_of_equals(order: np.ndarray, values: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """Rows in their order, at most `size` at once, no two of which have different values."""
    edges = np.flatnonzero(np.diff(values[order])) + 1
    for rows in np.split(order, edges):
        for start in range(0, len(rows), size):
            yield rows[start : start + size]


def decoding(objective: Objective, preprocess: Preprocess, tokenizer: Tokenizer, spec: Any) -> Generation:
    """How a translator writes: by beam, from its start token to its end token, within its decoder's positions."""
    beams, penalty = (objective.beams, objective.length_penalty) if isinstance(objective, Translate) else (1, 1.0)
    longest, (places, _) = preprocess.length or 256, max_positions(decoder_of(spec))
    if places is not None:
        longest = min(longest, places - 1)  # the start token has a position too
    return Generation(
        num_beams=beams, length_penalty=penalty, max_new_tokens=longest,
        decoder_start_token_id=preprocess.start, eos_token_id=tokenizer.eos, pad_token_id=tokenizer.pad,
    )  # fmt: skip


def sorted_back(values: list[np.ndarray], order: list[np.ndarray], rows: np.ndarray) -> np.ndarray:
    """Values of batches in any order, in the order of `rows`, which is ascending."""
    return np.concatenate(values)[np.argsort(np.concatenate(order), kind="stable")] if values else np.zeros(0)

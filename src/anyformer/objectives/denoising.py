"""Base of the encoder-decoder denoising objectives: source and target are both derived from one text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anyformer.objectives.batch import Batch
from anyformer.objectives.draw import Draw
from anyformer.objectives.objective import IGNORED, BatchSource, Objective
from anyformer.objectives.token_facts import TokenFacts, facts_of
from anyformer.objectives.words import row_means, word_loss


class Denoising(Objective, slot=True):
    """An encoder reads a text with a part of it lost, a decoder writes what was lost, or the whole (T5, 1910.10683).

    An objective of this kind says how a text becomes the two (`rewrite`), and how long they get (`longest`): all
    batches are padded to that, so that steps have one shape.
    """

    def rewrite(
        self, text: np.ndarray, facts: TokenFacts, random: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Source and target of the tokens (N,) of a text, without special tokens."""
        raise NotImplementedError

    def longest(self, length: int) -> tuple[int, int]:
        """Largest source and target length of a text of `length` tokens, without special tokens."""
        raise NotImplementedError

    def corrupt(self, batch: Batch, draw: Draw, source: BatchSource) -> Batch:
        facts = facts_of(source)
        rows, read, written = framed_rows(batch), [], []
        for row, number in zip(rows, batch.rows.tolist(), strict=True):
            text, lost = self.rewrite(row.text, facts, draw.generator(number))
            read.append(np.concatenate([row.before, text, row.behind]))
            written.append(row.close(lost, facts))
        around = max(len(row.before) + len(row.behind) for row in rows)
        reads, writes = self.longest(batch.inputs[0].shape[1] - around)
        ends = max(len(row.close(row.text[:0], facts)) for row in rows)
        sources, source_mask = pad_rows(read, reads + around, facts.pad)
        targets, asked = pad_rows(written, writes + ends, facts.pad)
        before = np.concatenate([np.full((len(targets), 1), facts.start_id), targets[:, :-1]], 1)  # shifted right
        # The decoder needs no padding mask: padding is at the end, where causality hides it.
        named = {} if source_mask.all() else {"source_mask": torch.from_numpy(source_mask)}
        inputs = torch.from_numpy(sources), torch.from_numpy(before)
        return Batch(inputs, torch.from_numpy(np.where(asked, targets, IGNORED)), batch.rows, named)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return word_loss(model, batch)

    def row_losses(self, output: Any, batch: Batch) -> Tensor:
        return row_means(output.logits, batch.targets)


@dataclass(frozen=True)
class FramedText:
    """The tokens of one block: the text, and the special tokens before and after it."""

    before: np.ndarray
    text: np.ndarray
    behind: np.ndarray

    def close(self, written: np.ndarray, facts: TokenFacts) -> np.ndarray:
        """The decoder target with the same special tokens; it always has an end token, and no decoder start token."""
        before = self.before[:0] if self.before.tolist() == [facts.start_id] else self.before
        end = [] if facts.eos is None else [facts.eos]
        return np.concatenate([before, written, self.behind if len(self.behind) else np.array(end, np.int64)])


def framed_rows(batch: Batch) -> list[FramedText]:
    """The rows of a batch of blocks, without their padding."""
    tokens, targets = batch.inputs[0].numpy(), batch.targets.numpy()
    mask = batch.named["mask"].numpy() if "mask" in batch.named else np.ones(tokens.shape, bool)
    found = []
    for row, asked, there in zip(tokens, targets != IGNORED, mask, strict=True):
        (places,) = asked.nonzero()
        first, last = int(places[0]), int(places[-1]) + 1
        found.append(FramedText(row[:first], row[first:last], row[last : int(there.sum())]))
    return found


def pad_rows(rows: Sequence[np.ndarray], length: int, fill: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of tokens padded to (B, length), and their mask."""
    lengths = np.array([len(row) for row in rows])
    mask = np.arange(length) < lengths[:, None]
    found = np.full(mask.shape, fill, np.int64)
    found[mask] = np.concatenate(rows)
    return found, mask

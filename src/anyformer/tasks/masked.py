"""Masked language modelling: tokens are masked, and an encoder predicts them (BERT, RoBERTa, ALBERT)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from anyformer.core.model import Model
from anyformer.data.datasets.blocks import Blocks
from anyformer.data.given_rows import OnBadRows
from anyformer.data.prepared import Prepared
from anyformer.data.settings import Data
from anyformer.embeds import Tokens
from anyformer.heads import LM, LMWithPair
from anyformer.log import Log
from anyformer.objectives import Batch, Masked, Objective
from anyformer.objectives.draw import EVALUATION
from anyformer.objectives.objective import IGNORED
from anyformer.slots import Network
from anyformer.tasks.gaps import GAPS, TEXT, GapFiller, read_texts
from anyformer.tasks.network import unfit
from anyformer.tasks.pretraining import EncoderPretraining
from anyformer.tasks.trained_model import TrainedModel

logger = logging.getLogger("anyformer")
SEGMENTS = 2  # token types: the first text and the second
SAMPLE = 100  # tokens of a sample


class MaskedTask(EncoderPretraining):
    """An encoder that predicts masked tokens."""

    name = "masked"
    other_names = ("mlm",)
    title = "masked language model"
    verb = "fills gaps"
    objective = Masked
    asked_for = f"a text with {GAPS[0]} for each token to be named"
    example_text = f"The {GAPS[0]} sat on the mat."

    # ------------------------------------------------------------ the model and its training

    def extend_network(self, spec: Network, name: str, objective: Objective) -> Network:
        """With text pairs, add a head for the pair task and an embedding of token types."""
        if not isinstance(objective, Masked) or objective.pairs == "none":
            return spec
        if not isinstance(spec, Model) or not isinstance(spec.embed, Tokens) or not isinstance(spec.head, LM):
            raise unfit(name, "does not read two texts in a row", "bert-base")
        segments = max(SEGMENTS, spec.embed.segments)
        return spec.replace(head=LMWithPair(words=spec.head), embed=spec.embed.replace(segments=segments))

    @torch.no_grad()
    def write_sample(self, model: nn.Module, data: Prepared, *, seed: int) -> str | None:
        """The beginning of the validation text with masks, and with the model's predictions in their place."""
        valid, tokenizer = data.valid, data.tokenizer
        if not isinstance(valid, Blocks) or tokenizer is None:
            return None
        device = next(model.parameters()).device
        batch = Masked(random=0.0, keep=0.0).corrupt(valid.batch([0]), EVALUATION, valid).to(device)
        named = model(*batch.inputs, **batch.named).logits.argmax(-1)
        filled = batch.targets.eq(IGNORED).where(batch.inputs[0], named)[0]
        shown = [tokens[:SAMPLE].tolist() for tokens in (batch.inputs[0][0], filled)]
        return "\n\n".join(tokenizer.decode(tokens, skip_special=False) for tokens in shown)

    def next_command(self, run: Path) -> str:
        return f"anyformer predict {run} new.txt"

    # ------------------------------------------------------------ evaluation

    def count_right(self, out: Any, batch: Batch) -> dict[str, tuple[int, int]]:
        """Masked tokens, and text pairs if they are used."""
        found = super().count_right(out, batch)
        if batch.pair is not None:
            found["pair_accuracy"] = int((out.pooled.argmax(-1) == batch.pair).sum()), len(batch)
        return found

    # ------------------------------------------------------------ new texts

    def predict(
        self, predictor: TrainedModel, source: Any, *, batch_size: int, on_bad_rows: OnBadRows
    ) -> list[Any] | None:
        """Each text with its gaps filled."""
        found = GapFiller(predictor).fill_each(read_texts(source), batch_size, on_bad_rows, logger.warning)
        return [None if filled is None else filled.text for filled in found]

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
        """One row per text: filled, with the best token of each gap and its probability."""
        import pyarrow as pa

        texts = read_texts(list(files))
        found = GapFiller(predictor).fill_each(texts, batch_size, on_bad_rows, log)
        best = [[gap[0] for gap in filled.gaps] if filled is not None else [] for filled in found]
        return pa.table(
            {
                TEXT: texts,
                "prediction": [None if filled is None else filled.text for filled in found],
                "tokens": [[choice.token for choice in row] for row in best],
                "probabilities": [[round(choice.probability, 6) for choice in row] for row in best],
            }
        )

    def answer_requests(self, rows: Sequence[Any], predictor: TrainedModel, *, batch_size: int) -> list[Any] | None:
        return [filled.to_json() for filled in GapFiller(predictor).fill(rows, batch_size)]

"""Masked language model: words are hidden, and an encoder names them (BERT, RoBERTa, ALBERT)."""

from __future__ import annotations

from anyformer.data.datasets.corpus import TaskTokens
from anyformer.objectives import Masked
from anyformer.tasks.pretraining import EncoderPretraining


class MaskedTask(EncoderPretraining):
    """An encoder that fills gaps."""

    name = "masked"
    title = "masked language model"
    verb = "fills gaps"
    objective = Masked
    tokens = TaskTokens(roles=("mask",))

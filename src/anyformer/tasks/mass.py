"""MASS-style pretraining: tokens are masked, and an encoder-decoder restores the whole text."""

from __future__ import annotations

from anyformer.data.datasets.corpus import TaskTokens
from anyformer.objectives import Mass
from anyformer.tasks.seq2seq_pretraining import Seq2SeqPretraining


class MassTask(Seq2SeqPretraining):
    """An encoder-decoder that restores masked text."""

    name = "mass"
    title = "masked sequence to sequence"
    verb = "restores text"
    objective = Mass
    tokens = TaskTokens(roles=("mask",))

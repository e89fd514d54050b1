"""Span corruption: spans of a text are replaced by sentinels, and an encoder-decoder restores them (T5)."""

from __future__ import annotations

from anyformer.objectives import Spans
from anyformer.tasks.seq2seq_pretraining import SENTINELS, Seq2SeqPretraining


class SpansTask(Seq2SeqPretraining):
    """An encoder-decoder that restores spans."""

    name = "spans"
    title = "span corruption"
    verb = "fills spans"
    objective = Spans
    tokens = SENTINELS

"""Deshuffling: an encoder-decoder reads the words of a text in random order and restores it."""

from __future__ import annotations

from anyformer.objectives import Deshuffle
from anyformer.tasks.seq2seq_pretraining import Seq2SeqPretraining


class DeshuffleTask(Seq2SeqPretraining):
    """An encoder-decoder that restores word order."""

    name = "deshuffle"
    title = "deshuffling"
    verb = "puts words in order"
    objective = Deshuffle

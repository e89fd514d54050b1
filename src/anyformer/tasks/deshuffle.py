"""Deshuffling: an encoder-decoder reads the words of a text in any order and writes the text."""

from __future__ import annotations

from anyformer.objectives import Deshuffle
from anyformer.tasks.seq2seq_pretraining import Seq2SeqPretraining


class DeshuffleTask(Seq2SeqPretraining):
    """An encoder-decoder that puts words in order."""

    name = "deshuffle"
    title = "deshuffling"
    verb = "puts words in order"
    objective = Deshuffle

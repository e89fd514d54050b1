"""Drop-tokens: tokens are left out without a trace, and an encoder-decoder writes them."""

from __future__ import annotations

from anyformer.objectives import DropTokens
from anyformer.tasks.seq2seq_pretraining import Seq2SeqPretraining


class DropTokensTask(Seq2SeqPretraining):
    """An encoder-decoder that finds what is missing."""

    name = "drop"
    title = "drop-tokens"
    verb = "finds what is missing"
    objective = DropTokens

"""Drop-tokens: tokens are deleted without a mark, and an encoder-decoder restores them."""

from __future__ import annotations

from anyformer.objectives import DropTokens
from anyformer.tasks.seq2seq_pretraining import Seq2SeqPretraining


class DropTokensTask(Seq2SeqPretraining):
    """An encoder-decoder that restores deleted tokens."""

    name = "drop"
    title = "drop-tokens"
    verb = "finds what is missing"
    objective = DropTokens

"""Decoding: writing text with a model, and scoring text that is there."""

from anyformer.generation.decode import Decoding, generate, stream
from anyformer.generation.result import Generated, Step
from anyformer.generation.score import Perplexity, Scored, perplexity, score
from anyformer.generation.settings import Generation

__all__ = [
    "Decoding", "Generated", "Generation", "Perplexity", "Scored", "Step", "generate", "perplexity", "score", "stream",
]  # fmt: skip

"""Generation with a language model, and log-probabilities of given text."""

from anyformer.generation.config import Generation
from anyformer.generation.decode import Decoding, generate, stream
from anyformer.generation.grammar import choice_guide, json_guide, regex_guide
from anyformer.generation.result import Generated, Step
from anyformer.generation.score import Perplexity, Scored, perplexity, score

__all__ = [
    "Decoding", "Generated", "Generation", "Perplexity", "Scored", "Step", "choice_guide", "generate", "json_guide",
    "perplexity", "regex_guide", "score", "stream",
]  # fmt: skip

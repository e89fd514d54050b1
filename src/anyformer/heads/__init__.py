"""Heads: how tokens become an answer."""

from anyformer.heads.distilled import Distilled
from anyformer.heads.lm import LM
from anyformer.heads.pooled import Pooled
from anyformer.heads.regress import Regress
from anyformer.heads.span import Span
from anyformer.heads.tokens import TokenHead

__all__ = ["LM", "Distilled", "Pooled", "Regress", "Span", "TokenHead"]

"""Heads: from hidden states to outputs."""

from anyformer.heads.boxes import Boxes
from anyformer.heads.crf import CRF
from anyformer.heads.distilled import Distilled
from anyformer.heads.forecast import Forecast
from anyformer.heads.image_text import ImageTextHead
from anyformer.heads.lm import LM
from anyformer.heads.lm_with_pair import LMWithPair
from anyformer.heads.pair import Pair
from anyformer.heads.pixels import PixelHead
from anyformer.heads.pooled import Pooled
from anyformer.heads.regress import Regress
from anyformer.heads.replaced import Replaced
from anyformer.heads.segment import SegmentHead
from anyformer.heads.span import Span
from anyformer.heads.tokens import TokenHead
from anyformer.heads.wide import WideAndDeep

__all__ = [
    "CRF", "LM", "Boxes", "Distilled", "Forecast", "ImageTextHead", "LMWithPair", "Pair", "PixelHead", "Pooled",
    "Regress", "Replaced", "SegmentHead", "Span", "TokenHead", "WideAndDeep",
]  # fmt: skip

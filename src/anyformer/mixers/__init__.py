"""Mixers: how tokens exchange information."""

from anyformer.mixers.attending_recurrent import AttendingRecurrent
from anyformer.mixers.attention import Attention
from anyformer.mixers.axial import Axial
from anyformer.mixers.block_sparse import BlockSparse
from anyformer.mixers.co_attention import CoAttention
from anyformer.mixers.convolution import Convolution
from anyformer.mixers.cross import Cross
from anyformer.mixers.hyena import Hyena
from anyformer.mixers.linear_attention import LinearAttention
from anyformer.mixers.local import Local
from anyformer.mixers.local_relation import LocalRelation
from anyformer.mixers.low_rank import LowRank
from anyformer.mixers.plain import Plain
from anyformer.mixers.recurrent import Recurrent
from anyformer.mixers.window2d import Window2D

__all__ = [
    "AttendingRecurrent", "Attention", "Axial", "BlockSparse", "CoAttention", "Convolution", "Cross", "Hyena",
    "LinearAttention", "Local", "LocalRelation", "LowRank", "Plain", "Recurrent", "Window2D",
]  # fmt: skip

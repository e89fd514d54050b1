"""Two towers: two models that never see each other, each with one vector in a space they share (CLIP, 2103.00020)."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.about import About
from anyformer.core.building import materialise
from anyformer.core.context import Mask
from anyformer.core.init import Init
from anyformer.core.model import Model, ModelModule, Output
from anyformer.core.own_init import Starting, constant
from anyformer.core.pytrees import as_tuple
from anyformer.core.streams import Masks, PairOutput, begin, both_masks, common_width
from anyformer.errors import UserError
from anyformer.slots import Network

MAX_LOG_SCALE = math.log(100.0)  # CLIP clamps its logit scale at 100 in training


class Towers(Network):
    """logits = exp(s) u·v for all pairs of a first u and a second v, both of length 1; s is learned from `log_scale`.

    Both models must have `Pooled` heads of the same width: `Pooled(dense=512, bias=False)` is CLIP's projection.
    Called as `model(first, second)` with masks as `Streams` has them; logits are (B, B'), and B' may be another number.
    """

    about: ClassVar[About | None] = About(
        "logits = exp(s) u v^T, u and v the normalised vectors of two models",
        "2103.00020",
        "both models + B^2 D",
    )

    first: Model
    second: Model
    log_scale: float = math.log(1 / 0.07)
    init: Init = "bert"

    def check(self) -> None:
        common_width(self)
        for name in ("first", "second"):
            if getattr(self, name).stack.has_cross_attention:
                raise UserError("a tower cannot have cross-attention: it sees its own tokens only",
                                where=f"Towers.{name}",
                                fix="use Streams(...) for layers with CoAttention")  # fmt: skip

    def build(self, *, device: Any = None, dtype: torch.dtype | None = None, seed: int | None = None) -> TowersModule:
        """Build the network with fresh weights, as `Model.build`."""
        return materialise(self, lambda: TowersModule(self), self.init, device, dtype, seed)


class TowersModule(Starting):
    """Parameter paths: `first.…`, `second.…` and `scale`."""

    def __init__(self, spec: Towers) -> None:
        super().__init__()
        self.spec = spec
        self.first = ModelModule(spec.first)
        self.second = ModelModule(spec.second)
        self.scale = nn.Parameter(torch.zeros(()))
        self.starts = {"scale": constant(spec.log_scale)}

    def forward(
        self, first: Any, second: Any, *, first_mask: Mask | None = None, second_mask: Mask | None = None,
        mask: Masks | None = None,
    ) -> PairOutput:  # fmt: skip
        """Similarity logits of every pair, and both embeddings as `first.pooled` and `second.pooled`."""
        seen = both_masks(first_mask, second_mask, mask)
        one, two = self.read(self.first, first, seen[0]), self.read(self.second, second, seen[1])
        assert one.pooled is not None and two.pooled is not None
        log_scale = self.scale.clamp(max=MAX_LOG_SCALE) if self.training else self.scale
        logits = one.pooled @ two.pooled.T * log_scale.exp()  # (B,B')
        losses = dict(one.losses or {})
        for name, loss in (two.losses or {}).items():
            losses[name] = losses[name] + loss if name in losses else loss
        return PairOutput(
            one.hidden, logits=logits, pooled=one.pooled, losses=losses, context=one.context, first=one, second=two
        )

    def read(self, model: ModelModule, given: Any, mask: Mask | None) -> Output:
        """One tower's output, with its pooled vector L2-normalised."""
        inputs = as_tuple(given)
        if isinstance(mask, Tensor) and mask.dim() == 1:
            mask = begin(model, inputs, mask).mask
        out = model(*inputs, mask=mask)
        out.pooled = F.normalize(out.pooled, dim=-1)
        return out

    def embed_first(self, first: Any, mask: Mask | None = None) -> Tensor:
        """Normalised embeddings (B,D) of first inputs."""
        return vectors(self.read(self.first, first, mask))

    def embed_second(self, second: Any, mask: Mask | None = None) -> Tensor:
        """Normalised embeddings (B,D) of second inputs."""
        return vectors(self.read(self.second, second, mask))


def vectors(out: Output) -> Tensor:
    assert out.pooled is not None
    return out.pooled

"""Visual Transformers (2006.03677): a few visual tokens pooled from feature maps, transformed, and projected back."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from anyformer.about import About
from anyformer.core.block import Block
from anyformer.core.context import lay_out
from anyformer.core.linear import LinearLayer
from anyformer.core.stack import try_out
from anyformer.errors import UserError
from anyformer.feeds.mlp import MLP
from anyformer.mixers.attention import Attention
from anyformer.nets.resnet import ResNet
from anyformer.positions.none import NoRelative
from anyformer.slots import Backbone
from anyformer.spec import field


class VisualTransformer(Backbone):
    """`depth` rounds over the feature maps X of `backbone`: tokenizer, one `block` over `tokens` tokens T, projector.

    Tokens are weighted means over all positions, T = softmax_positions(X A)' X V. A `filter` tokenizer learns A; a
    `recurrent` one computes it from the last round's tokens, A = (T W)' (the first round is a filter). The projector
    adds softmax_tokens(X Q (T K)' / sqrt(D)) T U to the maps. To replace a ResNet's last stage:
    `VisualTransformer(backbone=ResNet(depths=(3, 4, 6)))`.

    >>> VisualTransformer().channels, VisualTransformer().stride
    (1024, 16)
    """

    about: ClassVar[About | None] = About(
        "tokens = softmax(x W)^T x; tokens = stack(tokens); x + softmax((x W_q)(tokens W_k)^T) tokens W_v",
        "2006.03677",
        "HW L D + L^2 D a round, L tokens",
    )

    backbone: Backbone = field(default_factory=lambda: ResNet(depths=(3, 4, 6)))
    """The convolutional network before it."""
    depth: int = 3
    """Rounds of tokenizer, block and projector."""
    tokens: int = 16
    """Visual tokens."""
    width: int = 512
    """Channels of a token."""
    tokenizer: Literal["filter", "recurrent"] = "recurrent"
    """How tokens are pooled from the maps: by learned filters, or from the last round's tokens."""
    block: Block = field(default_factory=lambda: Block(mixer=Attention(heads=8), feed=MLP(act="relu", width=512)))
    """The block over the tokens."""

    def check(self) -> None:
        if min(self.depth, self.tokens, self.width) < 1:
            raise UserError(f"depth {self.depth}, tokens {self.tokens} and width {self.width} must be 1 or more",
                            where="VisualTransformer", fix="use depth 3, tokens 16, width 512")  # fmt: skip
        if (
            self.block.mixer.needs_grid
            or self.block.has_cross_attention
            or not isinstance(self.block.relative, NoRelative)
        ):
            raise UserError("visual tokens have no order, no grid and no memory", where="VisualTransformer.block",
                            fix="use Block(mixer=Attention(heads=...))")  # fmt: skip
        try_out(self.block, self.width, False)

    @property
    def inputs(self) -> int:
        return self.backbone.inputs

    @property
    def channels(self) -> int:
        return self.backbone.channels

    @property
    def stride(self) -> int:
        return self.backbone.stride

    def build(self) -> nn.Module:
        return VisualTransformerModule(self)


class VisualTransformerModule(nn.Module):
    def __init__(self, spec: VisualTransformer) -> None:
        super().__init__()
        self.spec = spec
        self.backbone = spec.backbone.build()
        self.rounds = nn.ModuleList(Round(spec, first=i == 0) for i in range(spec.depth))

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, colours, H, W) to (B, channels, H / stride, W / stride)."""
        return self.look(pixels)[0]

    def look(self, pixels: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The maps, and each round's tokenizer weights (B,L,H,W), which sum to 1 over positions."""
        maps = self.backbone(pixels)  # (B,C,H,W)
        x, tokens, shares = maps.flatten(2).mT, None, []
        for step in self.rounds:
            x, tokens, share = step(x, tokens)
            shares.append(share.unflatten(2, maps.shape[2:]))
        return x.mT.unflatten(2, maps.shape[2:]), shares

    @torch.no_grad()
    def token_maps(self, pixels: Tensor) -> list[Tensor]:
        """The tokenizer weights of each visual token, (B,L,H,W) per round, to draw over the image."""
        return self.look(pixels)[1]


class Round(nn.Module):
    """One module of the paper: tokenizer, transformer, projector."""

    def __init__(self, spec: VisualTransformer, first: bool) -> None:
        super().__init__()
        channels, width = spec.backbone.channels, spec.width
        recurrent = spec.tokenizer == "recurrent" and not first
        self.again = LinearLayer(width, channels, bias=False) if recurrent else None
        self.filter = None if recurrent else LinearLayer(channels, spec.tokens, bias=False)
        self.value = LinearLayer(channels, width, bias=False)
        self.block: Any = spec.block.build(width, causal=False, drop_path=spec.block.drop_path)
        self.query = LinearLayer(channels, width, bias=False)
        self.key = LinearLayer(width, width, bias=False)
        self.back = LinearLayer(width, channels, bias=False)

    def forward(self, x: Tensor, tokens: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Positions (B,N,C) and the last round's tokens (B,L,D), to both updated and the tokenizer's weights
        (B,L,N)."""
        if self.filter is not None:
            scores = self.filter(x).mT
        else:
            assert self.again is not None and tokens is not None
            scores = self.again(tokens) @ x.mT  # (B,L,N)
        share = scores.softmax(-1)
        drawn = self.value(share @ x)  # (B,L,D)
        tokens, losses = self.block(drawn, lay_out(drawn.shape[0], drawn.shape[1], drawn.device), None, ())
        if losses:
            raise UserError(f"the loss {next(iter(losses))} of a feed cannot leave a backbone", fix="use feed=MLP(...)")
        # (X Q)(T K)' = X (T K Q')': cheaper, since there are far fewer tokens than positions.
        fit = x @ (self.key(tokens) @ self.query.weight).mT * tokens.shape[-1] ** -0.5  # (B,N,L)
        return x + fit.softmax(-1) @ self.back(tokens), tokens, share

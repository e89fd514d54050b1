"""ELECTRA (2003.10555): a small generator replaces tokens, a discriminator detects them; both share an embedding."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from anyformer.about import About
from anyformer.core.block import Block
from anyformer.core.building import materialise
from anyformer.core.context import Mask
from anyformer.core.linear import LinearLayer
from anyformer.core.model import Model, ModelModule, Output
from anyformer.core.stack import Stack
from anyformer.embeds.tokens import Tokens
from anyformer.errors import UserError, check_fraction
from anyformer.feeds.mlp import MLP
from anyformer.heads import LM, Replaced
from anyformer.mixers.attention import Attention
from anyformer.slots import Network

DISCRIMINATOR = "discriminator."  # prefix of its weights


class Electra(Network):
    """A discriminator, and a generator of the same depth with a fraction `share` of its width.

    The generator uses the discriminator's embedding (table, positions, segments and norm) for input and output. Called
    like the discriminator, which is the final model; `generator` is the generator's spec.
    """

    about: ClassVar[About | None] = About(
        "x' = x with samples of p_G where tokens were hidden; L = -log p_G(x) + 50 BCE(D(x'), x' != x)",
        "2003.10555", "1 + share^2 times an encoder",
    )  # fmt: skip
    discriminator: Model
    """The encoder that detects replaced tokens."""
    share: float = 0.25
    """Size of the generator (width, heads, feed-forward) relative to the discriminator."""

    def check(self) -> None:
        check_fraction("Electra", "share", self.share, zero=False, one=True, fix="use 0.25")
        if not isinstance(self.discriminator.embed, Tokens) or self.discriminator.stack.causal:
            raise UserError("the discriminator does not read text in both directions", where="Electra.discriminator",
                            fix="use an encoder such as electra-small")  # fmt: skip
        if not isinstance(self.discriminator.head, Replaced):
            raise UserError("the discriminator scores no tokens", where="Electra.discriminator", fix="head=Replaced()")

    @property
    def embed(self) -> Tokens:
        """The shared embedding."""
        assert isinstance(self.discriminator.embed, Tokens)
        return self.discriminator.embed

    @property
    def stack(self) -> Stack:
        """The discriminator's layers, which describe the network."""
        return self.discriminator.plain_stack

    @property
    def generator(self) -> Model:
        """The generator's spec as a stand-alone masked LM."""
        wide = self.discriminator.plain_stack
        blocks = tuple(narrow_block(block, self.share) for block in wide.tiles)
        heads = max((heads_of(block) for block in blocks), default=1)
        width = max(1, round(wide.width * self.share / heads)) * heads
        stack = wide.replace(width=width, block=blocks if isinstance(wide.block, tuple) else blocks[0])
        inner = self.embed.inner or wide.width
        head = LM(tied=True, transform="gelu", norm=self.embed.norm, bias=True)
        embed = self.embed.replace(inner=None if inner == width else inner)
        return self.discriminator.replace(embed=embed, stack=stack, head=head)

    def build(self, *, device: Any = None, dtype: torch.dtype | None = None, seed: int | None = None) -> ElectraModule:
        """Build both networks with fresh weights, as `Model.build`."""
        return materialise(self, lambda: ElectraModule(self), self.discriminator.init, device, dtype, seed)


def narrow_block(block: Block, share: float) -> Block:
    """A block with a fraction of the heads and feed-forward channels, at least one of each."""
    mixer, feed = block.mixer, block.feed
    if isinstance(mixer, Attention):
        mixer = mixer.replace(heads=max(1, round(mixer.heads * share)))
    if isinstance(feed, MLP) and feed.width is not None:
        feed = feed.replace(width=max(1, round(feed.width * share)))
    return block.replace(mixer=mixer, feed=feed)


def heads_of(block: Block) -> int:
    """Heads of a block's attention, which must divide its width."""
    return block.mixer.heads if isinstance(block.mixer, Attention) else 1


class TokenGenerator(nn.Module):
    """The generator without an embedding: it uses the discriminator's."""

    def __init__(self, spec: Model) -> None:
        super().__init__()
        assert isinstance(spec.embed, Tokens) and spec.head is not None
        width, inner = spec.stack.width, spec.embed.inner
        self.project = None if inner is None else LinearLayer(inner, width)
        self.stack: Any = spec.stack.build()
        self.head: Any = spec.head.build(spec.stack.out_width, spec.embed.vocabulary)


class ElectraModule(nn.Module):
    def __init__(self, spec: Electra) -> None:
        super().__init__()
        self.spec = spec
        self.discriminator = ModelModule(spec.discriminator)
        self.generator = TokenGenerator(spec.generator)

    def forward(self, tokens: Tensor, *, mask: Mask | None = None, segments: Tensor | None = None) -> Output:
        """The discriminator's output: one logit per token (B,T,1), above 0 means replaced."""
        return self.discriminator(tokens, mask=mask, segments=segments)

    def read_hidden(self, tokens: Tensor, *, mask: Mask | None = None, segments: Tensor | None = None) -> Output:
        """The generator's pass over partially masked tokens (B,T), without its head."""
        embed = self.discriminator.embed
        context = embed.layout(tokens, mask=mask, segments=segments)
        x = embed.before_project(tokens, context)
        x = x if self.generator.project is None else self.generator.project(x)
        hidden, losses = self.generator.stack(x, context, None)
        return Output(hidden, losses=losses, context=self.generator.stack.after(context))

    def name_tokens(self, hidden: Tensor, context: Any) -> Tensor:
        """The generator's logits (B,K,V) from hidden states (B,K,D)."""
        logits: Tensor = self.generator.head(hidden, context, self.discriminator.table()).logits
        return logits

    def generator_alone(self) -> ModelModule:
        """The generator as a stand-alone network, with a copy of the shared embedding."""
        spec = self.spec.generator
        first = next(self.parameters())
        made = spec.build(device=first.device, dtype=first.dtype, seed=0)
        own = {f"embed.{name}": value for name, value in self.discriminator.embed.state_dict().items()
               if not name.startswith("project.")}  # fmt: skip
        own |= {f"{'embed.' * name.startswith('project.')}{name}": value
                for name, value in self.generator.state_dict().items()}  # fmt: skip
        made.load_state_dict(own)
        return made.train(self.training)

"""Whole models: an embedding, a stack of blocks and a head."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

import anyformer.core.feed_stack  # noqa: F401  imported to register the part: a saved model may name it
from anyformer.about import About
from anyformer.core.building import materialise, trial
from anyformer.core.context import Context, Mask
from anyformer.core.ensemble import Ensemble, EnsembleModule, MemberLinear, OwnLinear, split_linears
from anyformer.core.init import Init
from anyformer.core.pytrees import register
from anyformer.core.stack import Stack
from anyformer.core.state import State
from anyformer.embeds.tokens import Tokens
from anyformer.errors import UserError
from anyformer.slots import Body, Embed, Head, Losses, Network


@dataclass
class Output:
    """The output of a forward pass: hidden states (B,T,D) and, if a head makes them, logits or a pooled vector.

    In training, for a head that reads only some tokens (a classifier on the first), `hidden` and `context` cover only
    those (B,R,D): the last block computes no others. `before_head(...)` and `layers=True` give all.
    """

    hidden: Tensor
    logits: Tensor | None = None
    pooled: Tensor | None = None
    boxes: Tensor | None = None  # (B,T,4) centre, width and height as fractions of the image, of a detection head
    patches: Tensor | None = None  # (B,T,values) reconstructed pixels, of a head that gives them beside its logits
    transitions: Tensor | None = None  # (C+1,C+1) transition scores between tags, of a CRF head
    losses: Losses | None = None
    memory: Tensor | None = None  # the encoder's output, of an encoder-decoder
    context: Context | None = None  # the pass's positions and masks
    layers: list[Tensor] | None = None  # the head's input after each layer, if requested


register(Output)


class Model(Network):
    """An embedding, a stack and perhaps a head: encoder or decoder, for any kind of input.

    >>> from anyformer import Attention, Block, LM, Model, Stack, Tokens
    >>> stack = Stack(width=32, depth=2, causal=True, block=Block(mixer=Attention(heads=4)))
    >>> gpt = Model(embed=Tokens(vocab=65), stack=stack, head=LM())
    >>> gpt.build(seed=0)(torch.tensor([[1, 2, 3]])).logits.shape
    torch.Size([1, 3, 65])
    """

    about: ClassVar[About | None] = About("head(stack(embed(input)))", "1706.03762", "the sum of its parts")

    embed: Embed
    """What turns inputs into tokens."""
    stack: Body
    """The blocks."""
    head: Head | None = None
    """What turns hidden states into outputs; the hidden states are the output if not given."""
    init: Init = "gpt2"
    """How weights are initialised."""
    ensemble: Ensemble | None = None
    """Members that share its weights and whose predictions are averaged; one network if not given."""

    def check(self) -> None:
        if self.ensemble is not None and (self.head is None or self.head.answers is None):
            name = "no head" if self.head is None else type(self.head).__name__
            raise UserError(f"the outputs of {name} cannot be averaged", where="Model.ensemble",
                            fix="leave it out, or use head=Pooled(...) or Regress(...)")  # fmt: skip
        for mixer in self.stack.mixers:
            if mixer.needs_grid and not self.embed.gridded:
                names = type(mixer).__name__, type(self.embed).__name__
                raise UserError("{} needs rows and columns, {} gives none".format(*names), where="Model.stack",
                                fix="use embed=Patches(...) or mixer=Attention(...)")  # fmt: skip
            if self.embed.has_layer_positions and not mixer.takes_added:
                raise UserError(f"{type(mixer).__name__} has no queries and keys to add positions to in every layer",
                                where="Model.stack", fix="use mixer=Attention(...), or positions once")  # fmt: skip
        if self.head is not None and self.head.needs_grid and not self.embed.gridded:
            names = type(self.head).__name__, type(self.embed).__name__
            raise UserError("{} needs rows and columns, {} gives none".format(*names), where="Model.head",
                            fix="use embed=Patches(...) or Maps(...)")  # fmt: skip
        try_out(self.embed, self.head, self.stack.width, self.stack.out_width)

    @property
    def plain_stack(self) -> Stack:
        """Its `Stack`, the only body that published formats can describe; any other body is rejected."""
        if not isinstance(self.stack, Stack):
            raise UserError(f"a {type(self.stack).__name__} is not a stack of one width", where="Model.stack",
                            fix="use Stack(...)")  # fmt: skip
        return self.stack

    def build(self, *, device: Any = None, dtype: torch.dtype | None = None, seed: int | None = None) -> ModelModule:
        """Build the network with fresh weights; `device="meta"` gives shapes only, `seed` makes the weights
        repeatable."""
        return materialise(self, lambda: ModelModule(self), self.init, device, dtype, seed)


@lru_cache(maxsize=256)
def try_out(embed: Embed, head: Head | None, width: int, out_width: int) -> None:
    """Build both parts on `meta` so that sizes that do not fit fail with the spec, not at build time."""
    with trial(embed, head):
        embed.build(width)
        if head is not None:
            head.build(out_width, embed.vocabulary)


class ModelModule(nn.Module):
    def __init__(self, spec: Model, *, memory_width: int | None = None, own_table: bool = True) -> None:
        super().__init__()
        self.spec = spec
        width = spec.stack.width
        self.memory_width = width if memory_width is None else memory_width
        self.embed: Any = spec.embed.build(width) if own_table else spec.embed.build(width, own_table=False)  # type: ignore[call-arg]
        self.stack: Any = spec.stack.build(memory_width=memory_width)
        head = None if spec.head is None else spec.head.build(spec.stack.out_width, spec.embed.vocabulary)
        self.head: Any = head
        self.members: EnsembleModule | None = None
        if spec.ensemble is not None and spec.head is not None and head is not None:
            self.members = spec.ensemble.build(width, numbers=spec.head.answers == "numbers")
            split_linears(self.stack, MemberLinear, spec.ensemble.members)
            split_linears(head, OwnLinear, spec.ensemble.members)

    def forward(
        self,
        *inputs: Any,
        mask: Mask | None = None,
        positions: Tensor | None = None,
        segments: Tensor | None = None,
        documents: Tensor | None = None,
        prefix: Tensor | None = None,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
        memory_added: Tensor | None = None,
        state: State | None = None,
        table: Tensor | None = None,
        layers: bool = False,
        each_member: bool = False,
    ) -> Output:
        """Run the network. Text: `model(tokens)`; images: `model(pixels)`; tables: `model(numbers, categories)`.

        `mask` is a padding mask (B,T), an attention mask (B or 1, H or 1, T, S), bool (True = visible) or an additive
        float bias, a function of (query index, key index), or a tuple of these. With a `state`, the inputs continue the
        sequence it holds. `prefix` (B,) is the length of each row's bidirectional prefix (causal="prefix_lm"). `layers`
        also returns each layer's output (`Output.layers`). An ensemble's hidden states are those of all members stacked
        along the batch, and its logits the mean prediction; `each_member` returns them per member.
        """
        out = self.before_head(
            *inputs, mask=mask, positions=positions, segments=segments, documents=documents, prefix=prefix,
            memory=memory, memory_mask=memory_mask, memory_added=memory_added, state=state, table=table, layers=layers,
            for_head=True,
        )  # fmt: skip
        if self.head is not None:
            answer = self.head(out.hidden, out.context, self.table())
            out.logits, out.pooled = answer.logits, answer.pooled
            out.boxes, out.patches, out.transitions = answer.boxes, answer.patches, answer.transitions
            if self.members is not None and out.logits is not None and not each_member:
                out.logits = self.members.average(out.logits)
        return out

    def before_head(
        self,
        *inputs: Any,
        mask: Mask | None = None,
        positions: Tensor | None = None,
        segments: Tensor | None = None,
        documents: Tensor | None = None,
        prefix: Tensor | None = None,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
        memory_added: Tensor | None = None,
        state: State | None = None,
        table: Tensor | None = None,
        layers: bool = False,
        for_head: bool = False,
    ) -> Output:
        """The forward pass without its head, for a loss that never materialises all logits.

        `for_head` skips tokens that the head does not read.
        """
        context = self.embed.layout(
            *inputs, mask=mask, positions=positions, documents=documents, segments=segments, state=state
        )
        check_rules(self.spec, context)
        context = with_memory(with_prefix(self.spec, context, prefix), memory, memory_mask, memory_added)
        x = self.embed(*inputs, context=context) if table is None else self.embed(*inputs, context=context, table=table)
        check_memory(self, x.shape[0], context.memory)
        if self.members is not None:
            x, context = self.members.spread(x, context)
        if layers:
            every = self.stack.every(x, context)
            return Output(every[-1], context=self.stack.after(context), layers=every)
        if for_head and self.skips_tokens and state is None:
            some = self.head.tokens_read(context)
            hidden, losses = self.stack(x, context, None, some)
            return Output(hidden, losses=losses, context=context.for_subset(some))
        hidden, losses = self.stack(x, context, None if state is None else state.layers)
        return Output(hidden, losses=losses, context=self.stack.after(context))

    @property
    def skips_tokens(self) -> bool:
        """Whether the last block computes only the tokens that the head reads.

        In training only: in eval mode all hidden states are returned.
        """
        head = self.spec.head
        return self.training and head is not None and head.reads_token_subset and self.spec.stack.supports_token_subset

    def table(self) -> Tensor | None:
        """The embedding matrix, for a tied head."""
        return None if self.spec.embed.vocabulary is None or self.embed.table is None else self.embed.table.weight

    def state(self, batch: int, limit: int | None = None, *, rolling: bool = True) -> State:
        """An empty decoding state; `limit` preallocates for that many tokens and rejects more.

        `rolling=False` keeps everything even where windows would let it be dropped, so that `truncate` works.
        """
        if not self.spec.stack.causal:
            raise UserError("only a causal stack can be decoded step by step", fix="use Stack(causal=True)")
        return State(self.stack.state(batch, limit), batch, limit=limit, rolling=rolling)


class Seq2Seq(Network):
    """An encoder and a decoder whose blocks have `cross`; `share="table"` gives both and a tied head one table.

    Called as `model(source, target)`; the decoder must be causal for decoding step by step.
    """

    about: ClassVar[About | None] = About(
        "head(decoder(target, memory = encoder(source)))",
        "1706.03762",
        "the sum of its parts",
    )

    encoder: Model
    """The model that reads the source."""
    decoder: Model
    """The model that generates the target, with cross-attention."""
    head: Head | None = None
    """What turns hidden states into outputs; the hidden states are the output if not given."""
    share: Literal["none", "table"] = "none"
    """Whether encoder, decoder and tied head share one token embedding."""
    init: Init = "xavier"
    """How weights are initialised."""

    def check(self) -> None:
        if not self.decoder.stack.has_cross_attention:
            raise UserError("no block of the decoder looks at the encoder", where="Seq2Seq.decoder",
                            fix="use Block(cross=Cross(heads=...))")  # fmt: skip
        if self.encoder.head is not None or self.decoder.head is not None:
            raise UserError(
                "encoder and decoder have no heads of their own", where="Seq2Seq", fix="give the head to Seq2Seq"
            )
        if self.share == "table" and self.encoder.embed.vocabulary != self.decoder.embed.vocabulary:
            raise UserError("one table cannot serve two vocabularies", where="Seq2Seq.share", fix='use share="none"')
        if self.share == "table" and self.encoder.embed.vocabulary is None:
            raise UserError("the encoder has no table of words to share", where="Seq2Seq.share", fix='use share="none"')
        if self.share == "table" and not isinstance(self.decoder.embed, Tokens):
            kind = type(self.decoder.embed).__name__
            raise UserError(f"{kind} cannot borrow a table", where="Seq2Seq.share", fix='use share="none"')
        try_out(self.decoder.embed, self.head, self.decoder.stack.width, self.decoder.stack.out_width)

    def build(self, *, device: Any = None, dtype: torch.dtype | None = None, seed: int | None = None) -> Seq2SeqModule:
        """Build the network with fresh weights, as `Model.build`."""
        return materialise(self, lambda: Seq2SeqModule(self), self.init, device, dtype, seed)


class Seq2SeqModule(nn.Module):
    def __init__(self, spec: Seq2Seq) -> None:
        super().__init__()
        self.spec = spec
        self.encoder = ModelModule(spec.encoder)
        self.decoder = ModelModule(
            spec.decoder, memory_width=spec.encoder.stack.out_width, own_table=spec.share == "none"
        )
        self.head = (
            None if spec.head is None else spec.head.build(spec.decoder.stack.out_width, spec.decoder.embed.vocabulary)
        )

    def forward(
        self,
        source: Any,
        target: Any = None,
        *,
        source_mask: Mask | None = None,
        target_mask: Mask | None = None,
        memory: Tensor | None = None,
        state: State | None = None,
        layers: bool = False,
    ) -> Output:
        """Logits for every target token. With a `state` or `memory` the encoder is not run again; source may be None.

        A decoder of learned queries has no targets: `target` is then None.
        """
        out = self.before_head(
            source, target, source_mask=source_mask, target_mask=target_mask, memory=memory, state=state, layers=layers
        )
        if self.head is not None:
            answer = self.head(out.hidden, out.context, self.table())
            out.logits, out.pooled = answer.logits, answer.pooled
            out.boxes, out.patches = answer.boxes, answer.patches
        return out

    def before_head(
        self,
        source: Any,
        target: Any = None,
        *,
        source_mask: Mask | None = None,
        target_mask: Mask | None = None,
        memory: Tensor | None = None,
        state: State | None = None,
        layers: bool = False,
    ) -> Output:
        """The forward pass without its head, as `ModelModule.before_head`."""
        if memory is None and (state is None or state.memory is None):
            if source is None:
                raise UserError("there is neither a source nor a memory", fix="give the source, or memory=")
            encoded = self.read(source, source_mask)
            assert encoded.context is not None
            memory, memory_mask, added = encoded.hidden, encoded.context.mask, encoded.context.added
        else:
            memory_mask, added = padding_of(source_mask), None
        if state is not None:
            if state.memory is None:
                state.memory, state.memory_mask = memory, memory_mask
            memory, memory_mask = state.memory, state.memory_mask
        out = self.decoder(
            memory if target is None else target, mask=target_mask, memory=memory, memory_mask=memory_mask,
            memory_added=added, state=state, table=self.shared_table(), layers=layers,
        )  # fmt: skip
        out.memory = memory
        return out

    def table(self) -> Tensor | None:
        """The decoder's embedding matrix, also used by a tied head."""
        return self.decoder.table() if self.spec.share == "none" else self.shared_table()

    def encode(self, source: Any, source_mask: Mask | None = None) -> Tensor:
        """The encoder's output (B,S,D), for many targets or steps."""
        return self.read(source, source_mask).hidden

    def read(self, source: Any, source_mask: Mask | None = None) -> Output:
        """The encoder's full output, with its context (padding mask, positions)."""
        return self.encoder(*(source if isinstance(source, tuple) else (source,)), mask=source_mask)

    def shared_table(self) -> Tensor | None:
        return self.encoder.table() if self.spec.share == "table" else None

    def state(self, batch: int, limit: int | None = None, *, rolling: bool = True) -> State:
        """An empty decoding state of the decoder."""
        return self.decoder.state(batch, limit, rolling=rolling)


def check_rules(spec: Model, context: Context) -> None:
    """Reject attention masks that some layer would ignore: its outputs would be wrong."""
    if context.allowed is None and context.bias is None:
        return
    for mixer in spec.stack.mixers:
        if not mixer.takes_rules:
            raise UserError(f"{type(mixer).__name__} knows padding and documents, but no mask between tokens",
                            where="mask", fix="give padding (B, T), or use mixer=Attention(...)")  # fmt: skip


def with_prefix(spec: Model, context: Context, prefix: Tensor | None) -> Context:
    if prefix is None:
        return context
    if spec.stack.causal != "prefix_lm":
        raise UserError("this stack has no prefix", where="prefix", fix='use Stack(causal="prefix_lm")')
    batch = context.tokens.shape[0] if context.tokens is not None else prefix.shape[0]
    if prefix.dim() != 1 or prefix.shape[0] != batch or prefix.is_floating_point():
        raise UserError(f"prefix has shape {tuple(prefix.shape)} and type {prefix.dtype}",
                        fix=f"expected whole numbers (B,) = ({batch},)")  # fmt: skip
    return replace(context, prefix=prefix)


def with_memory(
    context: Context, memory: Tensor | None, memory_mask: Tensor | None, memory_added: Tensor | None
) -> Context:
    if memory is None:
        return context
    if memory_mask is not None and memory_mask.shape != memory.shape[:2]:
        raise UserError(f"memory_mask has shape {tuple(memory_mask.shape)}", fix=f"expected {tuple(memory.shape[:2])}")
    return replace(context, memory=memory, memory_mask=memory_mask, memory_added=memory_added)


def check_memory(model: ModelModule, batch: int, memory: Tensor | None) -> None:
    """Reject a memory of the wrong batch or width, which would broadcast or fail deep inside a layer."""
    looking = model.spec.stack.has_cross_attention
    if looking and memory is None:
        raise UserError("cross-attention has nothing to look at", fix="pass memory=, the encoder's output")
    if memory is not None and (memory.dim() != 3 or memory.shape[0] != batch):
        raise UserError(f"memory has shape {tuple(memory.shape)}", fix=f"expected (B, S, D) with B = {batch}")
    if looking and memory is not None and memory.shape[2] != model.memory_width:
        raise UserError(f"memory is {memory.shape[2]} wide", fix=f"expected {model.memory_width}, the encoder's width")


def padding_of(mask: Mask | None) -> Tensor | None:
    """The padding mask (B,S) among a source's masks, which cross-attention must respect too."""
    for part in mask if isinstance(mask, tuple) else (mask,):
        if isinstance(part, Tensor) and part.dim() == 2:
            return part != 0
    return None

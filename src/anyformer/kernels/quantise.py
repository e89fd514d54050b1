"""Int8 weight quantisation: a quarter of the memory, and of the reads of every decode step."""

from __future__ import annotations

from torch import nn

from anyformer.core.linear import is_plain_linear
from anyformer.embeds.tokens import TokensModule
from anyformer.errors import UserError
from anyformer.heads.lm import LMModule
from anyformer.kernels.int8 import Int8Linear, Int8Table


def quantise(model: nn.Module, to: str = "int8") -> nn.Module:
    """Quantise a model's weights to int8 in place, for inference only: it cannot be trained afterwards.

    Applies to every linear layer and to the embedding table, which a tied head shares: weight = scale * n, n from -127
    to 127, with a scale per row (output channel or token); biases, norms, positions and activations are not quantised.
    On a CPU the matmuls use our own C++ kernel, compiled once in a few seconds; without a C++ compiler weights are
    dequantised first, which is slow. `compiled(quantise(model))` also compiles the rest of a decode step.

    >>> from anyformer import preset
    >>> model = quantise(preset("gpt2-tiny").build(seed=0))
    >>> model.stack.blocks[0].feed.up.values.dtype
    torch.int8
    """
    if to != "int8":
        raise UserError(f"weights cannot be rounded to {to!r}", where="quantise", fix='use "int8"')
    found = 0
    for part in list(model.modules()):
        if isinstance(part, TokensModule) and isinstance(part.table, nn.Embedding):
            part.table = Int8Table(part.table.weight)
            found += 1
        if isinstance(part, LMModule) and isinstance(part.weight, nn.Parameter):
            weight = part.weight
            del part.weight
            part.weight = Int8Table(weight)
            found += 1
        for name, child in list(part.named_children()):
            if is_plain_linear(child):
                setattr(part, name, Int8Linear(child))
                found += 1
    if not found:
        raise UserError("there are no weights to round", where="quantise", fix="give a built model, not yet rounded")
    return model.requires_grad_(False).eval()


def is_quantised(model: nn.Module) -> bool:
    """Whether any weights are in int8."""
    return any(isinstance(part, Int8Linear | Int8Table) for part in model.modules())


def check_whole(model: nn.Module, where: object, verb: str = "save") -> None:
    """Reject saving or changing a quantised model: both need the original weights."""
    if is_quantised(model):
        raise UserError(f"a model in 8 bits cannot be {verb}d", where=str(where),
                        fix=f"{verb} it before quantise, and quantise what is loaded")  # fmt: skip

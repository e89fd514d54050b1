"""rtdl's FT-Transformer, whole, with copied weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from rtdl_revisiting_models import FTTransformer
from torch import Tensor

from anyformer import preset
from anyformer.presets.tables import ft_transformer
from tests.reference.copying import (
    Weights,
    agree,
    call,
    deviation,
    from_linear,
    from_norm,
    fuse,
    interleave,
    seeded,
    shaken,
    under,
)


def from_rtdl(theirs: FTTransformer, heads: int) -> Weights:
    weights: Weights = {"embed.lead": theirs.cls_embedding.weight[None]}
    biases = []
    if theirs.cont_embeddings is not None:
        weights["embed.weight"] = theirs.cont_embeddings.weight
        biases.append(theirs.cont_embeddings.bias)
    if theirs.cat_embeddings is not None:
        weights["embed.category.weight"] = torch.cat([table.weight for table in theirs.cat_embeddings.embeddings])
        biases.append(theirs.cat_embeddings.bias)
    weights["embed.bias"] = torch.cat(biases)
    for i, block in enumerate(theirs.backbone.blocks):
        attention, at = block["attention"], f"stack.blocks.{i}"
        for name in ("weight", "bias"):
            parts = [getattr(part, name) for part in (attention.W_q, attention.W_k, attention.W_v)]
            weights[f"{at}.mixer.qkv.{name}"] = fuse(*parts, heads)
            # Its ReGLU is a * relu(b): the second half is the gate.
            value, gate = getattr(block["ffn"].linear1, name).chunk(2)
            weights[f"{at}.feed.up.{name}"] = interleave(gate, value)
        weights |= under(f"{at}.mixer.out", from_linear(attention.W_out))
        weights |= under(f"{at}.feed.down", from_linear(block["ffn"].linear2))
        weights |= under(f"{at}.around_feed.before", from_norm(block["ffn_normalization"]))
        if i > 0:
            weights |= under(f"{at}.around_mixer.before", from_norm(block["attention_normalization"]))
    weights |= under("head.norm", from_norm(theirs.backbone.output.normalization))
    return weights | under("head.out", from_linear(theirs.backbone.output.linear))


class Logits(torch.nn.Module):
    """A model that gives its logits only."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.model(*inputs).logits


def both(numbers: int, categories: list[int], depth: int, outputs: int) -> tuple[FTTransformer, Any]:
    theirs = FTTransformer(
        n_cont_features=numbers, cat_cardinalities=categories, d_out=outputs, n_blocks=depth, d_block=24,
        attention_n_heads=4, attention_dropout=0.0, ffn_d_hidden=None, ffn_d_hidden_multiplier=4 / 3,
        ffn_dropout=0.0, residual_dropout=0.0,
    )  # fmt: skip
    spec = ft_transformer(24, depth, 4, numbers=numbers, categories=tuple(categories) or None, outputs=outputs)
    return shaken(theirs), Logits(spec.build(dtype=torch.float64, seed=0).eval())


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize(("numbers", "categories"), [(5, []), (3, [4, 2]), (0, [3, 7, 2])])
def test_ft_transformer_equals_rtdls(numbers: int, categories: list[int], depth: int) -> None:
    theirs, ours = both(numbers, categories, depth, outputs=2)
    given = seeded(6, numbers) if numbers else None
    generator = torch.Generator().manual_seed(0)
    chosen = [torch.randint(0, count, (6,), generator=generator) for count in categories]
    coded = torch.stack(chosen, 1) if chosen else None
    expected = theirs(given, coded)
    weights = from_rtdl(theirs, 4)
    inputs = (given,) if coded is None else (given, coded)
    out = call(ours, {f"model.{name}": weight for name, weight in weights.items()}, *inputs)
    agree(out, expected, ([] if given is None else [given]) + list(theirs.parameters()))
    # Control: gate and value the wrong way round (relu(a) * b) is noticed.
    wrong = {
        f"model.{name}": weight.unflatten(0, (-1, 2)).flip(1).flatten(0, 1) if ".feed.up." in name else weight
        for name, weight in weights.items()
    }
    assert deviation(call(ours, wrong, *inputs), expected) > 1e-3


@pytest.mark.quick
def test_the_preset_is_rtdls_default_to_the_last_parameter() -> None:
    theirs = FTTransformer(n_cont_features=8, cat_cardinalities=[], d_out=1, **FTTransformer.get_default_kwargs())
    ours = preset("ft-transformer").build(device="meta")
    count = sum(parameter.numel() for parameter in ours.parameters())
    assert count == sum(parameter.numel() for parameter in theirs.parameters())
    assert count == 894_913  # California housing: 8 numbers, one output
    shapes = {name: weight.shape for name, weight in from_rtdl(theirs, 8).items()}
    assert shapes == {name: parameter.shape for name, parameter in ours.named_parameters()}
    dropouts = FTTransformer.get_default_kwargs()
    first = preset("ft-transformer").stack.layers[0]
    assert (first.mixer.dropout, first.feed.dropout) == (dropouts["attention_dropout"], dropouts["ffn_dropout"])

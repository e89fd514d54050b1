"""Bad shapes and types: one clear error before any compute, never a broadcast surprise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from anyformer import Buckets, Cross, Joint, Learned, Patches, Shaw, Table, Tokens, UserError
from tests.laws.nets import build, inputs, language, memory, model, pair, tokens

pytestmark = pytest.mark.quick


def calls(spec: Any, *given: Any, state: bool = False, dtype: torch.dtype = torch.float64, **options: Any) -> Any:
    def call() -> Any:
        net = build(spec, dtype)
        if state:
            options["state"] = net.state(2)
        compute = []
        for module in net.modules():
            if isinstance(module, nn.Linear):
                module.register_forward_pre_hook(lambda *_: compute.append(1))
        try:
            return net(*given, **options)
        finally:
            call.computed = len(compute)  # type: ignore[attr-defined]

    return call


GIVEN = tokens(2, 6)
ONES = torch.ones
IMAGE = Patches(size=8, patch=4, channels=2)
BOTH = Joint(parts=(IMAGE, Tokens(vocab=9)))
LOOKING = language(cross=Cross(heads=4))
CALLS: dict[str, tuple[Callable[[], Any], str]] = {
    "float-ids": (
        calls(language(), GIVEN.double()),
        "tokens have shape (2, 6) and type torch.float64; expected ids (B, T), whole numbers",
    ),
    "bool-ids": (calls(language(), GIVEN > 3), "type torch.bool; expected ids"),
    "flat-ids": (calls(language(), GIVEN[0]), "tokens have shape (6,) and type torch.int64; expected ids (B, T)"),
    "list-of-ids": (calls(language(), [[1, 2]]), "tokens are list; give a tensor of ids"),
    "no-ids": (calls(language(), GIVEN[:, :0]), "the input holds no tokens; give at least one"),
    "mask-length": (calls(language(), GIVEN, mask=ONES(2, 5, dtype=torch.bool)), "mask has shape (2, 5)"),
    "mask-batch": (calls(language(), GIVEN, mask=ONES(3, 6, dtype=torch.bool)), "expected padding (B, T) = (2, 6)"),
    "mask-float": (calls(language(), GIVEN, mask=ONES(2, 6)), "type torch.float32; expected padding"),
    "mask-keys": (calls(language(), GIVEN, mask=ONES(1, 1, 6, 1, dtype=torch.bool)), "mask has shape (1, 1, 6, 1)"),
    "mask-heads": (
        calls(language(), GIVEN, mask=ONES(1, 3, 6, 6, dtype=torch.bool)),
        "mask has shape (1, 3, 6, 6); expected one head or all 4",
    ),
    "positions-shape": (
        calls(language(), GIVEN, positions=torch.arange(5)[None]),
        "positions has shape (1, 5); expected (B, T) = (2, 6)",
    ),
    "positions-float": (
        calls(language(position=Learned(9)), GIVEN, positions=ONES(1, 6)),
        "Learned takes whole numbers",
    ),
    "shaw-float": (calls(language(relative=Shaw(2)), GIVEN, positions=ONES(1, 6)), "Shaw takes whole numbers"),
    "buckets-float": (calls(language(relative=Buckets()), GIVEN, positions=ONES(1, 6)), "Buckets takes whole numbers"),
    "documents-shape": (
        calls(language(), GIVEN, documents=ONES(2, 7).long()),
        "documents has shape (2, 7); expected (B, T) = (2, 6)",
    ),
    "documents-float": (
        calls(language(), GIVEN, documents=ONES(2, 6)),
        "documents has type torch.float32; expected whole numbers",
    ),
    "segments": (
        calls(language(), GIVEN, segments=GIVEN),
        "segments are given but the embedding has none; use Tokens(segments=2)",
    ),
    "too-long": (
        calls(language(position=Learned(5)), GIVEN),
        "6 tokens do not fit 5 learned positions; shorten the text or rebuild with position=Learned(6)",
    ),
    "state-batch": (
        calls(language(), tokens(3, 6), state=True),
        "the state was made for batch 2, got batch 3; make it with state(3)",
    ),
    "pixels-channels": (
        calls(model(embed=IMAGE), torch.zeros(1, 3, 8, 8)),
        "pixels have shape (1, 3, 8, 8) and type torch.float32; expected (B, 2, H, W)",
    ),
    "pixels-whole": (
        calls(model(embed=IMAGE), torch.zeros(1, 2, 8, 8).long()),
        "expected (B, 2, H, W) in floating point",
    ),
    "pixels-size": (
        calls(model(embed=IMAGE), torch.zeros(1, 2, 8, 9)),
        "an image of 8 x 9 does not cut into 4 x 4 pixel patches; resize it to multiples of 4",
    ),
    "pixels-missing": (calls(model(embed=IMAGE), None), "pixels are NoneType; give a tensor"),
    "larger-image": (
        calls(model(embed=IMAGE.replace(position=Learned(5))), torch.zeros(1, 2, 16, 16)),
        "17 tokens do not fit 5 positions",
    ),
    "columns": (calls(model(embed=Table(numbers=3)), torch.zeros(2, 4)), "numbers have shape (2, 4); expected (B, 3)"),
    "missing-column": (
        calls(model(embed=Table(numbers=3, categories=(2,))), torch.zeros(2, 3)),
        "categories have shape (2, 0); expected (B, 1)",
    ),
    "no-row": (
        calls(model(embed=Table(numbers=3)), None),
        "a table row needs numbers or categories; call model(numbers, categories)",
    ),
    "whole-numbers": (
        calls(model(embed=Table(numbers=3)), torch.zeros(2, 3).long()),
        "numbers have type torch.int64; expected floating point",
    ),
    "float-categories": (
        calls(model(embed=Table(categories=(2,))), None, torch.zeros(2, 1)),
        "categories have type torch.float32; expected whole numbers",
    ),
    "joint-inputs": (
        calls(model(embed=BOTH), GIVEN),
        "1 inputs for 2 parts; give one input a part, None to leave it out",
    ),
    "joint-nothing": (calls(model(embed=BOTH), None, None), "every part is left out; give at least one input"),
    "joint-mask": (
        calls(model(embed=BOTH), *inputs(BOTH), mask=ONES(2, 8).bool()),
        "the mask of a joint sequence is a tuple; give 2 masks",
    ),
    "no-memory": (calls(LOOKING, GIVEN), "cross-attention has nothing to look at; pass memory="),
    "memory-batch": (
        calls(LOOKING, GIVEN, memory=memory(1, width=16)),
        "memory has shape (1, 5, 16); expected (B, S, D) with B = 2",
    ),
    "memory-width": (calls(LOOKING, GIVEN, memory=memory(2, width=12)), "memory is 12 wide; expected 16"),
    "memory-mask": (
        calls(LOOKING, GIVEN, memory=memory(2, width=16), memory_mask=ONES(2, 4).bool()),
        "memory_mask has shape (2, 4); expected (2, 5)",
    ),
    "no-source": (calls(pair(), None, GIVEN), "there is neither a source nor a memory; give the source"),
}


@pytest.mark.parametrize(("call", "said"), CALLS.values(), ids=CALLS)
def test_bad_inputs_are_refused_before_any_layer_computes(call: Any, said: str) -> None:
    with pytest.raises(UserError) as caught:
        call()
    assert said in str(caught.value) and caught.value.fix
    # A rule's number of heads is known to the layer that has heads: its own projection has run by then.
    assert call.computed <= ("one head or all" in said), "a layer had already run"


def test_good_inputs_do_compute() -> None:
    """The control of the count above."""
    call = calls(language(), GIVEN)
    call()
    assert call.computed > 0


def test_bf16_models_take_float32_images_and_tables() -> None:
    for embed in (IMAGE, Table(numbers=3)):
        net = build(model(embed=embed), torch.bfloat16)
        assert net(*inputs(embed, dtype=torch.float32)).hidden.dtype == torch.bfloat16

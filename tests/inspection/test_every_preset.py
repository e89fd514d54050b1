"""Every named model can be looked into: the sites are found, maps are right, residuals are there."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import anyformer
from anyformer import SAGAN, Seq2Seq, Streams, Towers
from anyformer.inspection.capture import Capture, look
from tests.laws.nets import inputs, tokens

TINY = [name for name in anyformer.preset_names() if name.endswith("-tiny")]
# These mix no tokens with each other, or do so in layers over maps of an image, which are no mixers of a block.
WITHOUT_MAPS = ("table-", "resnet-", "cnn-classifier", "sagan-", "lr-net-")


def given(spec: Any) -> tuple[Any, ...]:
    """Inputs for one row."""
    if isinstance(spec, SAGAN):
        return (torch.randn(1, spec.noise), torch.zeros(1, dtype=torch.long))
    if isinstance(spec, Seq2Seq):
        source = inputs(spec.encoder.embed, batch=1, length=6, dtype=torch.float32)[0]
        return (source, tokens(1, 5)) if spec.decoder.embed.vocabulary else (source,)
    if isinstance(spec, Streams | Towers):
        return tuple(
            inputs(side.embed, batch=1, length=8, dtype=torch.float32)[0] for side in (spec.first, spec.second)
        )
    return tuple(inputs(spec.embed, batch=1, length=8, dtype=torch.float32))


def captured(name: str) -> Capture:
    spec = anyformer.preset(name)
    return look(spec.build(seed=0), given(spec))


@pytest.mark.parametrize("name", TINY)
def test_every_named_model_can_be_looked_into(name):
    capture = captured(name)
    if not name.startswith(WITHOUT_MAPS):
        assert capture.sites, "no mixer was found"
    for site in capture.sites:
        if site.kind == "other":
            continue
        weights = capture.weights(site.index)
        assert weights.shape == (site.heads, len(capture.axes[site.queries]), len(capture.axes[site.keys])), site
        sums = weights.sum(-1)
        assert torch.all(((sums - 1).abs() < 1e-5) | (sums == 0)), site
    for stack in capture.stacks:
        stream = capture.residuals(stack)
        assert len(stream) == len(capture.blocks(stack)) + 1

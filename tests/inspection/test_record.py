"""What was noted of a pass on another device comes to the CPU whole: the same answers from copies of everything."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import anyformer
from anyformer.inspection.answer import Query
from anyformer.inspection.capture import Capture, look
from anyformer.inspection.record import to_host
from anyformer.inspection.views import views
from tests.inspection import models
from tests.inspection.test_every_preset import given

# One of each kind of network: shared layers, two stacks, two streams, a mixer without queries and keys, a pyramid.
PRESETS = ("albert-base-tiny", "t5-small-tiny", "detr-r50-tiny", "vilbert-base-tiny", "hyena-small-tiny",
           "lstm-lm-tiny", "pyramid-small-tiny", "mixtral-tiny", "ft-transformer-tiny", "vit-b16-tiny")  # fmt: skip


def on_host(capture: Capture) -> Capture:
    """The capture as it would be had its model been on another device."""
    model, inputs, found = to_host(capture.model, capture.given, capture.found)
    return Capture(capture.source, capture.inputs, capture.predictor, model, inputs, found, name=capture.name)


@pytest.mark.parametrize("name", PRESETS)
def test_a_copy_on_the_host_gives_the_same_maps(name):
    spec = anyformer.preset(name)
    capture = look(spec.build(seed=0), given(spec))
    copied = on_host(capture)
    shared = {p.data_ptr() for p in capture.model.parameters()} & {p.data_ptr() for p in copied.model.parameters()}
    assert not shared - {0}, "the weights were not copied"
    assert [site.label for site in copied.sites] == [site.label for site in capture.sites]
    modules = set(copied.model.modules())
    assert all(call.module in modules for call in (*copied.found.mixers, *copied.found.blocks))
    for site in capture.sites:
        assert torch.equal(capture.weights(site.index), copied.weights(site.index)), site
    for stack in capture.stacks:
        assert all(map(torch.equal, capture.residuals(stack), copied.residuals(stack)))


@pytest.mark.parametrize("kind", models.KINDS)
def test_every_view_answers_the_same_from_the_copy(kind):
    capture = look(models.predictor(kind), models.inputs(kind))
    copied = on_host(capture)
    assert copied.trust.ok
    for name, view in views().items():
        if view.applies(capture) is not None or name == "trace":  # a trace holds the time that each token took
            continue
        one, other = view.answer(capture, Query()), view.answer(copied, Query())
        assert one.facts == other.facts, name
        assert one.arrays.keys() == other.arrays.keys()
        for key, array in one.arrays.items():
            np.testing.assert_array_equal(array, other.arrays[key], err_msg=f"{name} {key}")

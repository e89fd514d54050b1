"""Principal components of the patch filters, against another way to compute them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from anyformer import Attention, Block, Model, Patches, Pooled, Stack
from anyformer.core.model import ModelModule
from anyformer.errors import UserError
from anyformer.inspection.filters import (
    components_of,
    filter_components,
    patch_filters,
    tile_filters,
    untrained_filters,
)
from anyformer.presets import preset


def vit(width: int = 32, patch: int | tuple[int, int] = 4, channels: int = 3, init: str = "bert") -> ModelModule:
    stack = Stack(width=width, depth=1, block=Block(mixer=Attention(heads=4)))
    embed = Patches(size=16, patch=patch, channels=channels)
    return Model(embed=embed, stack=stack, head=Pooled(classes=3), init=init).build(seed=0)  # type: ignore[arg-type]


def by_covariance(filters: Tensor, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Components and explained shares from the eigenvectors of the covariance matrix, in numpy."""
    rows = filters.double().flatten(1).numpy()
    values, vectors = np.linalg.eigh(np.cov(rows, rowvar=False))
    order = np.argsort(values)[::-1][:count]
    return vectors[:, order].T, values[order] / values.sum()


def test_components_are_the_eigenvectors_of_the_covariance() -> None:
    model = vit(width=64)
    found = filter_components(model, 10)
    expected, shares = by_covariance(patch_filters(model), 10)
    overlap = np.abs((found.components.flatten(1).numpy() * expected).sum(1))
    assert overlap == pytest.approx(np.ones(10), abs=1e-8)
    assert found.explained.numpy() == pytest.approx(shares, abs=1e-12)
    uncentred = np.linalg.svd(patch_filters(model).double().flatten(1).numpy() + 1.0, full_matrices=False)[2][:10]
    assert np.abs((uncentred * expected).sum(1)).min() < 0.9  # control: without the mean taken off they are others


def test_components_are_orthonormal_and_rebuild_the_filters() -> None:
    filters = patch_filters(vit(width=64))
    every = components_of(filters, 48)
    flat = every.components.flatten(1)
    assert torch.allclose(flat @ flat.mT, torch.eye(48, dtype=torch.float64), atol=1e-10)
    rebuilt = every.mean.flatten() + every.coordinates @ flat
    assert torch.allclose(rebuilt, filters.double().flatten(1), atol=1e-10)
    assert float(every.explained.sum()) == pytest.approx(1.0)
    few = components_of(filters, 5)
    lost = few.mean.flatten() + few.coordinates @ few.components.flatten(1)
    assert not torch.allclose(lost, filters.double().flatten(1), atol=1e-3)  # control: five are not enough


def test_signs_do_not_depend_on_the_sign_of_the_filters() -> None:
    filters = patch_filters(vit(width=64))
    one, other = components_of(filters).components, components_of(-filters).components
    assert torch.allclose(one, other, atol=1e-9)
    flat = one.flatten(1)
    assert (flat.gather(1, flat.abs().argmax(1, keepdim=True)) > 0).all()


def test_there_are_no_more_components_than_filters() -> None:
    found = filter_components(vit(width=16))
    assert found.components.shape == (16, 3, 4, 4) and found.coordinates.shape == (16, 16)


def test_equal_filters_explain_nothing() -> None:
    found = components_of(torch.ones(8, 3, 2, 2))
    assert torch.equal(found.explained, torch.zeros(8, dtype=torch.float64))


def test_filters_are_what_a_patch_is_multiplied_by() -> None:
    model = vit(patch=(2, 8))
    pixels = torch.randn(1, 3, 16, 16)
    by_filters = torch.nn.functional.conv2d(pixels, patch_filters(model), stride=(2, 8)).flatten(2).mT
    laid = model.embed.layout(pixels)
    place = model.embed.position(laid, torch.float32)
    tokens = model.embed(pixels, context=laid) - place  # the class token first
    assert torch.allclose(tokens[:, 1:] - model.embed.patch.bias, by_filters, atol=1e-5)


def test_untrained_filters_are_the_start_of_training() -> None:
    model = preset("vit-b16-tiny").build(seed=3)
    fresh = untrained_filters(model, seed=3)
    assert fresh.shape == patch_filters(model).shape
    assert float(fresh.std()) == pytest.approx(float(patch_filters(model).std()), rel=0.05)  # the same scheme
    wide = preset("vit-b16-tiny").replace(init="xavier").build(seed=3)
    assert float(untrained_filters(wide).std()) != pytest.approx(float(fresh.std()), rel=0.5)  # control: another


def test_the_grid_holds_every_filter_at_its_place() -> None:
    filters = torch.zeros(5, 3, 2, 2)
    filters[4, 0] = 2.0
    page = tile_filters(filters, columns=3)
    assert page.shape == (5, 8, 3)
    assert page[3, 3].tolist() == [255, 128, 128] and page[0, 0].tolist() == [128, 128, 128]
    assert page[2, 0].tolist() == [255, 255, 255] and page[3, 7].tolist() == [255, 255, 255]
    assert tile_filters(filters, columns=3, scale=4.0)[3, 3].tolist() == [191, 128, 128]


def test_grey_filters_are_drawn_grey() -> None:
    page = filter_components(vit(channels=1)).image()
    assert (page[..., 0] == page[..., 1]).all() and page.shape[2] == 3


def test_a_network_without_patches_is_refused() -> None:
    with pytest.raises(UserError, match="does not cut images into patches"):
        filter_components(preset("gpt2-tiny").build(seed=0))

"""FID and IS equal their formulas on distributions whose answers are known, and say whose features they use."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from anyformer import Model, Patches, Pooled, Stack, UserError
from anyformer.checkpoints.folder import Opened
from anyformer.data.images.decode_all import picture_steps
from anyformer.evaluation.image_scores import (
    ClassifierFeatures,
    RandomFeatures,
    features_of,
    frechet_distance,
    frechet_of_normals,
    image_scores,
    inception_score,
    whole_numbers,
)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def with_moments(mean: Tensor, cov: Tensor, rows: int = 50, seed: int = 0) -> Tensor:
    """Features whose mean and covariance are these exactly."""
    x = numbers(rows, len(mean), seed=seed)
    x = x - x.mean(0)
    white = torch.linalg.inv(torch.linalg.cholesky(x.T @ x / (rows - 1)))
    return x @ white.T @ torch.linalg.cholesky(cov).T + mean


def random_cov(size: int, seed: int) -> Tensor:
    x = numbers(size, 2 * size, seed=seed)
    return x @ x.T / size


@pytest.mark.quick
def test_the_distance_of_known_normals() -> None:
    """Commuting covariances: sum of (m - n)^2 + (s - t)^2 over directions."""
    m, n, s, t = torch.tensor([[0.0, 1, -2], [1.0, 1, 2], [1.0, 2, 3], [4.0, 2, 0.5]], dtype=torch.float64)
    turn = torch.linalg.qr(numbers(3, 3))[0]
    a, b = turn @ s.square().diag() @ turn.T, turn @ t.square().diag() @ turn.T
    wanted = float((m - n).square().sum() + (s - t).square().sum())
    assert frechet_of_normals(m, a, n, b) == pytest.approx(wanted, abs=1e-9)
    assert frechet_distance(with_moments(m, a), with_moments(n, b, 70, 1)) == pytest.approx(wanted, abs=1e-9)
    assert abs(frechet_distance(with_moments(m, a), with_moments(n, b * 1.1)) - wanted) > 1e-2  # control


def test_the_distance_equals_the_matrix_root_of_scipy() -> None:
    from scipy.linalg import sqrtm

    for seed in range(4):
        a, b = random_cov(6, seed), random_cov(6, seed + 10)
        m, n = numbers(6, seed=seed), numbers(6, seed=seed + 1)
        cross = float(np.trace(sqrtm((a @ b).numpy()).real))
        wanted = float((m - n).square().sum() + a.trace() + b.trace()) - 2 * cross
        assert frechet_distance(with_moments(m, a), with_moments(n, b, 40, 3)) == pytest.approx(wanted, abs=1e-8)
        assert frechet_of_normals(m, a, n, b) == pytest.approx(frechet_of_normals(n, b, m, a), abs=1e-9)


@pytest.mark.quick
@pytest.mark.parametrize("rows, size", [(500, 64), (20, 64), (2, 3)])
def test_w14_a_set_is_at_distance_0_from_itself(rows: int, size: int) -> None:
    """Also with fewer rows than numbers, where most directions have no spread at all."""
    x = numbers(rows, size) * 5 + 2
    assert frechet_distance(x, x) < 1e-6
    assert frechet_distance(x, x[torch.randperm(rows, generator=torch.Generator().manual_seed(0))]) < 1e-6
    assert frechet_distance(x, x + 0.1) == pytest.approx(0.01 * size, rel=1e-6)
    assert frechet_distance(x.float().numpy(), x.float()) < 1e-6


@pytest.mark.quick
def test_inception_score_of_known_probabilities() -> None:
    assert inception_score(torch.full((40, 7), 1 / 7)).mean == pytest.approx(1, abs=1e-9)
    assert inception_score(torch.eye(5).repeat(20, 1)).mean == pytest.approx(5, abs=1e-9)
    assert inception_score(torch.eye(5)[[2] * 30]).mean == pytest.approx(1, abs=1e-9)  # sure, but always the same
    half = torch.tensor([[0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5]]).repeat(10, 1)
    assert inception_score(half, splits=2).mean == pytest.approx(2, abs=1e-9)


def test_inception_score_equals_its_formula_in_loops() -> None:
    p = numbers(23, 4, seed=5).softmax(-1)
    scores = []
    for k in range(3):
        rows = [p[i].tolist() for i in ([*range(8)], [*range(8, 16)], [*range(16, 23)])[k]]
        mean = [sum(row[c] for row in rows) / len(rows) for c in range(4)]
        kl = [sum(row[c] * math.log(row[c] / mean[c]) for c in range(4)) for row in rows]
        scores.append(math.exp(sum(kl) / len(kl)))
    found = inception_score(p, splits=3)
    assert found.mean == pytest.approx(sum(scores) / 3, abs=1e-12)
    assert found.deviation == pytest.approx(float(np.std(scores)), abs=1e-12)
    assert inception_score(p, splits=1).mean != pytest.approx(found.mean, abs=1e-6)


def classifier(seed: int = 0) -> ClassifierFeatures:
    spec = Model(
        embed=Patches(size=8, patch=4),
        stack=Stack(width=12, depth=0),
        head=Pooled(classes=3, pool="mean"),
        init="xavier",
    )
    return ClassifierFeatures(Opened(spec, spec.build(seed=seed).eval()), picture_steps(8, 3))


def test_scores_of_images_by_a_classifier_that_is_named() -> None:
    draw = np.random.default_rng(0)
    real = draw.integers(0, 256, (60, 3, 8, 8), dtype=np.uint8)
    same = image_scores(real, real, classifier())
    assert same.fid < 1e-6 and same.inception == same.inception_of_real and (same.real, same.fake) == (60, 60)
    dark = image_scores(real, real // 2, classifier(), batch_size=7)
    assert dark.fid > 1e-2
    assert dark.features == same.features and "12 numbers before the 3 classes of Model " in same.features
    assert image_scores(real, real, classifier(1)).features != same.features
    vectors, shares = features_of(real, classifier())
    assert shares is not None
    out = classifier().opened.model(torch.from_numpy(real).float() / 127.5 - 1)
    assert (vectors - out.pooled).abs().max() < 1e-5 and (shares - out.logits.softmax(-1)).abs().max() < 1e-5
    assert dark.fid == pytest.approx(frechet_distance(vectors, features_of(real // 2, classifier())[0]), rel=1e-4)


def test_random_features_tell_sets_apart_and_are_always_the_same() -> None:
    draw = np.random.default_rng(0)
    real = draw.integers(0, 256, (300, 3, 16, 16), dtype=np.uint8)
    same, dark, flat = (image_scores(real[:150], images, RandomFeatures(3)) for images in
                        (real[150:], real[150:] // 2, np.full_like(real[150:], 128)))  # fmt: skip
    assert same.inception is None and same.inception_of_real is None
    assert same.fid < 0.1 * dark.fid and same.fid < 0.1 * flat.fid
    assert torch.equal(RandomFeatures(3)(real)[0], RandomFeatures(3)(real)[0])
    grain = np.repeat(np.repeat(real[:, :, ::2, ::2], 2, 2), 2, 3)  # the same levels, other textures
    assert image_scores(real[:150], grain[150:], RandomFeatures(3)).fid > 10 * same.fid
    assert RandomFeatures(1)(real[:, :1])[0].shape == (300, 112)


@pytest.mark.quick
def test_images_between_minus_1_and_1_are_rounded_as_a_picture_file_would() -> None:
    levels = torch.arange(256).view(2, 1, 8, 16)
    assert (torch.from_numpy(whole_numbers(levels / 127.5 - 1)).long() == levels).all()
    assert (whole_numbers(levels.to(torch.uint8)) == levels.numpy()).all()


@pytest.mark.quick
def test_what_cannot_be_scored_is_refused() -> None:
    with pytest.raises(UserError, match="3 and 4 numbers"):
        frechet_distance(numbers(5, 3), numbers(5, 4))
    with pytest.raises(UserError, match=r"features_b: shape \(1, 3\)"):
        frechet_distance(numbers(5, 3), numbers(1, 3))
    with pytest.raises(UserError, match="not finite"):
        frechet_distance(numbers(5, 3), numbers(5, 3) / 0)
    with pytest.raises(UserError, match="do not sum to 1"):
        inception_score(numbers(20, 3).abs())
    with pytest.raises(UserError, match="cannot be split into 10"):
        inception_score(torch.eye(3))
    with pytest.raises(UserError, match="beyond -1 to 1"):
        whole_numbers(np.full((2, 3, 4, 4), 2.0))
    with pytest.raises(UserError, match="takes no images"):
        ClassifierFeatures(classifier().opened, None)

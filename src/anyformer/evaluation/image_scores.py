"""Quality of generated images: Fréchet distance of features (FID, 1706.08500) and Inception score (IS, 1606.03498).

The papers take both from one Inception network. No weights are downloaded here: features and classes are those of any
image classifier, or features alone those of a network with fixed random weights; the scores name it. Scores by
different networks cannot be compared, nor with published ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.checkpoints.folder import Opened
from anyformer.data.images.preprocessing import ImageSteps
from anyformer.errors import UserError

WIDTHS = (16, 32, 64)  # channels of the random network; each stage halves the resolution


class InceptionScore(NamedTuple):
    """Mean and standard deviation over the splits."""

    mean: float
    deviation: float


class ImageScores(NamedTuple):
    """FID of generated against real images, IS of both if the network has classes, and the feature network's name."""

    fid: float
    inception: InceptionScore | None
    inception_of_real: InceptionScore | None
    real: int
    fake: int
    features: str


# ---------------------------------------------------------------- the formulas


def frechet_distance(features_a: Any, features_b: Any) -> float:
    """Fréchet distance of the normal distributions fitted to two sets of features (N, F).

    >>> a = torch.tensor([[-1.0], [1.0], [0.0]])
    >>> frechet_distance(a, a + 3)
    9.0
    """
    a, b = rows_of(features_a, "features_a"), rows_of(features_b, "features_b")
    if a.shape[1] != b.shape[1]:
        raise UserError(f"features of {a.shape[1]} and {b.shape[1]} numbers", fix="take both from one network")
    return frechet_of_normals(a.mean(0), covariance(a), b.mean(0), covariance(b))


def frechet_of_normals(mean_a: Tensor, cov_a: Tensor, mean_b: Tensor, cov_b: Tensor) -> float:
    """|m_a - m_b|^2 + tr(A + B - 2 (A B)^1/2), in float64.

    The trace of (A B)^1/2 is the sum of the singular values of A^1/2 B^1/2: unlike the roots of eigenvalues of A B,
    these lose no precision in directions of almost no variance.
    """
    cross = torch.linalg.svdvals(root(cov_a) @ root(cov_b)).sum()
    squared = (mean_a - mean_b).double().square().sum()
    return max(0.0, float(squared + cov_a.double().trace() + cov_b.double().trace() - 2 * cross))


def root(matrix: Tensor) -> Tensor:
    """The symmetric square root of a covariance; eigenvalues just below 0 by rounding are clipped."""
    values, vectors = torch.linalg.eigh(matrix.double())
    return vectors * values.clamp(min=0).sqrt() @ vectors.mT


def covariance(features: Tensor) -> Tensor:
    """(F, F) of rows (N, F), by N - 1."""
    centred = features - features.mean(0)
    return centred.mT @ centred / (len(features) - 1)


def inception_score(probabilities: Any, splits: int = 10) -> InceptionScore:
    """exp(mean KL(p(class | image) || p(class))) of class probabilities (N, classes), over `splits` parts of the rows.

    1 if all images get the same probabilities, the number of classes if each is certain and all are equally frequent.
    Parts are contiguous rows, as in the paper: rows must not be sorted by class.

    >>> inception_score(torch.eye(4).repeat(6, 1), splits=2)
    InceptionScore(mean=4.0, deviation=0.0)
    """
    rows = rows_of(probabilities, "probabilities")
    if not 1 <= splits <= len(rows):
        raise UserError(f"{len(rows)} rows cannot be split into {splits}", where="splits", fix=f"use 1 to {len(rows)}")
    if bool((rows < 0).any()) or float((rows.sum(1) - 1).abs().max()) > 1e-3:
        raise UserError(
            "rows are not probabilities: they do not sum to 1", where="probabilities", fix="use softmax(-1)"
        )
    scores = []
    for part in rows.tensor_split(splits):
        mean = part.mean(0, keepdim=True)
        scores.append((torch.xlogy(part, part) - torch.xlogy(part, mean)).sum(1).mean().exp())
    found = torch.stack(scores)
    return InceptionScore(float(found.mean()), float(found.std(correction=0)))


def rows_of(values: Any, where: str) -> Tensor:
    """A matrix in float64, finite, of at least two rows."""
    rows = torch.as_tensor(values).detach().to("cpu", torch.float64)
    if rows.dim() != 2 or len(rows) < 2:
        raise UserError(f"shape {tuple(rows.shape)}", where=where, fix="expected (N, F) with N of 2 or more")
    if not bool(rows.isfinite().all()):
        raise UserError("a number is not finite", where=where, fix="remove the images that give nan")
    return rows


# ---------------------------------------------------------------- whose features


class FeatureNetwork(Protocol):
    """A network whose features images are compared by."""

    @property
    def name(self) -> str:
        """Display name: scores under different names cannot be compared."""

    def __call__(self, pixels: np.ndarray) -> tuple[Tensor, Tensor | None]:
        """Features (N,F) of pixels (N,C,H,W) in 0 to 255, and probabilities (N,classes) if it has classes."""


class ClassifierFeatures:
    """The input of an image classifier's last layer, and its probabilities."""

    def __init__(self, opened: Opened, steps: ImageSteps | None) -> None:
        if steps is None:
            raise UserError("the model takes no images", where="classifier", fix="load an image classifier")
        self.opened, self.steps = opened, steps
        self.sizes = ""  # known with the first images

    @property
    def name(self) -> str:
        """The classifier's spec type and the first digits of its weights' hash."""
        mark = hashlib.sha256()
        for name, value in self.opened.model.named_parameters():
            mark.update(name.encode() + value.detach().float().cpu().numpy().tobytes())
        return f"{self.sizes}{type(self.opened.spec).__name__} {mark.hexdigest()[:8]}"

    @torch.inference_mode()
    def __call__(self, pixels: np.ndarray) -> tuple[Tensor, Tensor | None]:
        weight = next(self.opened.model.parameters())
        out = self.opened.model(self.steps(list(pixels)).to(weight.device, weight.dtype))
        if out.pooled is None or out.logits is None or out.logits.dim() != 2 or out.logits.shape[1] < 2:
            raise UserError("the model gives no classes", where="classifier", fix="load an image classifier")
        self.sizes = f"{out.pooled.shape[1]} numbers before the {out.logits.shape[1]} classes of "
        return out.pooled.double().cpu(), out.logits.double().softmax(-1).cpu()


class RandomFeatures:
    """Mean activations of a small convolutional network with fixed random weights.

    It captures colours, edges and textures and has no classes. Nothing is downloaded or trained, so that two runs on
    the
    same images can be compared by it.
    """

    def __init__(self, channels: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.weights = []
        for width in WIDTHS:
            spread = (2 / (9 * channels)) ** 0.5  # keeps the variance of activations from layer to layer (1502.01852)
            self.weights.append(torch.randn(width, channels, 3, 3, generator=generator) * spread)
            channels = width

    @property
    def name(self) -> str:
        return f"{sum(WIDTHS)} mean activations of a convolutional network with fixed random weights"

    @torch.inference_mode()
    def __call__(self, pixels: np.ndarray) -> tuple[Tensor, Tensor | None]:
        x, found = torch.from_numpy(np.ascontiguousarray(pixels)).float() / 127.5 - 1, []
        for weight in self.weights:
            x = F.relu(F.conv2d(x, weight, padding=1))
            found.append(x.mean((2, 3)))
            x = F.avg_pool2d(x, 2)
        return torch.cat(found, 1).double(), None


# ---------------------------------------------------------------- images


def image_scores(real: Any, fake: Any, network: FeatureNetwork, *, batch_size: int = 100) -> ImageScores:
    """Scores of generated images against real ones, by the features and classes of a network.

    Images are (N, C, H, W): integers 0 to 255, or floats from -1 to 1 as a generator returns them, which are rounded
        to 8 bits as in an image file.
    """
    (a, shares_a), (b, shares_b) = (features_of(images, network, batch_size=batch_size) for images in (real, fake))
    splits = min(10, len(a), len(b))
    real_score, fake_score = (
        None if shares is None else inception_score(shuffle_rows(shares), splits) for shares in (shares_a, shares_b)
    )
    return ImageScores(frechet_distance(a, b), fake_score, real_score, len(a), len(b), network.name)


def features_of(images: Any, network: FeatureNetwork, *, batch_size: int = 100) -> tuple[Tensor, Tensor | None]:
    """Features (N,F) of all images, and probabilities (N,classes) if the network has classes."""
    found = [network(part) for part in batches(whole_numbers(images), batch_size)]
    shares = [share for _, share in found if share is not None]
    return torch.cat([features for features, _ in found]), torch.cat(shares) if shares else None


def whole_numbers(images: Any) -> np.ndarray:
    """(N, C, H, W) in 0 to 255."""
    pixels = images.detach().cpu().numpy() if isinstance(images, Tensor) else np.asarray(images)
    if pixels.ndim != 4 or len(pixels) < 2:
        raise UserError(f"images have shape {pixels.shape}", where="images", fix="expected (N, C, H, W), N 2 or more")
    if pixels.dtype == np.uint8:
        return pixels
    if not np.issubdtype(pixels.dtype, np.floating) or not np.abs(pixels).max() <= 1:
        raise UserError(f"images of type {pixels.dtype} beyond -1 to 1", where="images", fix="give uint8 from 0 to 255")
    return np.rint((pixels + 1) * 127.5).astype(np.uint8)


def shuffle_rows(rows: Tensor) -> Tensor:
    """Shuffle with a fixed seed, as images of a folder are sorted by class."""
    return rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]


def batches(pixels: np.ndarray, size: int) -> Iterator[np.ndarray]:
    for start in range(0, len(pixels), size):
        yield pixels[start : start + size]

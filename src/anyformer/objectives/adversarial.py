"""GAN training with the hinge loss of 1705.02894, as in SAGAN."""

from __future__ import annotations

from typing import ClassVar, Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.errors import UserError
from anyformer.objectives.batch import Batch
from anyformer.objectives.objective import Objective, Phase, full


class AdversarialNets(Protocol):
    """One module with the submodules `generator` and `discriminator`."""

    def draw_noise(self, rows: int) -> Tensor:
        """Noise (B,Z) on the nets' device, from torch's global generator."""

    def generate(self, z: Tensor, labels: Tensor) -> Tensor:
        """Images in [-1, 1] from noise and classes (B,)."""

    def discriminate(self, images: Tensor, labels: Tensor) -> Tensor:
        """Logits (B,) of images; above 0 means real."""


class Adversarial(Objective):
    """Each step trains the discriminator, then the generator, on the same real images and on noise of its own.

    The discriminator learns faster (1706.08500). Batches are images between -1 and 1 with
    their classes. The running mean of training.ema is of the generator alone, which is what a user keeps.
    """

    compiles: ClassVar[bool] = False  # spectral norm updates its estimates, which are parameters, in place
    min_batch_size: ClassVar[int] = 2  # batch norm needs more than one image
    discriminator_lr_scale: float = 4.0
    """Learning rate of the discriminator over that of the generator, training.optimizer.lr."""

    def check(self) -> None:
        if not 0 < self.discriminator_lr_scale < 1000:
            raise UserError(f"discriminator_lr_scale {self.discriminator_lr_scale} is not a factor of a learning rate",
                            where="Adversarial", fix="use 4, or 1 for equal rates")  # fmt: skip

    def weight(self, batch: Batch) -> int:
        return len(batch)

    def phases(self) -> tuple[Phase, ...]:
        return (
            Phase(
                self.discriminator_loss, "discriminator", "discriminator", lr_scale=self.discriminator_lr_scale,
                ema=False,
            ),
            Phase(self.generator_loss, "generator", "generator"),
        )  # fmt: skip

    def discriminator_loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Hinge loss that pushes logits of real images above 1 and of generated ones below -1, summed over images."""
        nets, images, labels = cast(AdversarialNets, model), batch.inputs[0], batch.targets
        with torch.no_grad():
            fake = nets.generate(nets.draw_noise(len(labels)), labels)
        # One pass for both, so that both use the same spectrally normalised weights.
        scores = nets.discriminate(torch.cat([images, fake.to(images.dtype)]), torch.cat([labels, labels]))
        real_scores, fake_scores = full(scores).chunk(2)
        return discriminator_loss(real_scores, fake_scores) * len(labels)

    def generator_loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Negative logits of generated images, summed over the batch."""
        nets, labels = cast(AdversarialNets, model), batch.targets
        fake = nets.generate(nets.draw_noise(len(labels)), labels)
        return generator_loss(full(nets.discriminate(fake, labels))) * len(labels)


def discriminator_loss(real: Tensor, fake: Tensor) -> Tensor:
    """mean max(0, 1 - D(real)) + mean max(0, 1 + D(fake)): 2 if all logits are 0.

    >>> discriminator_loss(torch.zeros(3), torch.zeros(3)).item()
    2.0
    """
    return F.relu(1 - real).mean() + F.relu(1 + fake).mean()


def generator_loss(fake: Tensor) -> Tensor:
    """-mean D(fake): not clipped, so that the generator always gets a gradient."""
    return -fake.mean()

"""One step of a generator against a discriminator, and everything that a step changes: weights, optimizers, mean."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from anyformer import faults
from anyformer.errors import Diverged, UserError
from anyformer.kernels.compile_cache import use_private_cache
from anyformer.nets.sagan import SAGANModule
from anyformer.objectives.adversarial import discriminator_loss, generator_loss
from anyformer.spec import Spec
from anyformer.training.loader import seed_of
from anyformer.training.optim import restore, state_tensors
from anyformer.training.step import put

BETAS = (0.0, 0.9)
AGAIN = "train anew with lower rates or another seed; the last checkpoint is whole"


class Adversarial(Spec):
    """How the two nets are trained; the discriminator learns faster (1706.08500). `ema` is of the generator."""

    steps: int = 10_000
    batch_size: int = 64
    seed: int = 0
    generator_lr: float = 1e-4
    discriminator_lr: float = 4e-4
    ema: float = 0.999
    save_every: int = 1000
    sample_every: int = 500

    def check(self) -> None:
        for name in ("steps", "save_every", "sample_every"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} {getattr(self, name)} is below 1", where="Adversarial", fix="use 1000")
        if self.batch_size < 2:
            raise UserError(
                f"batch_size {self.batch_size} is below 2", where="Adversarial", fix="use 64: batch norm needs more"
            )
        if not 0 <= self.ema < 1:
            raise UserError(f"ema {self.ema} is not a share below 1", where="Adversarial.ema", fix="use 0.999")
        for name in ("generator_lr", "discriminator_lr"):
            if getattr(self, name) <= 0:
                what = f"{name} {getattr(self, name)} is not positive"
                raise UserError(what, where=f"Adversarial.{name}", fix="use 1e-4")


# ---------------------------------------------------------------- a step


class Duel:
    """Both nets in training, their optimizers, and the running mean of the generator."""

    def __init__(self, net: SAGANModule, settings: Adversarial) -> None:
        self.net, self.settings = net.train(), settings
        self.device = next(net.parameters()).device
        self.names = {id(p): name for name, p in net.named_parameters()}
        self.mean = copy.deepcopy(net.generator).eval().requires_grad_(False)
        self.generator = [p for p in net.generator.parameters() if p.requires_grad]
        self.discriminator = [p for p in net.discriminator.parameters() if p.requires_grad]
        fused = self.device.type == "cuda"
        use_private_cache()  # as in `Engine`
        self.optimizers: list[torch.optim.Optimizer] = [
            torch.optim.Adam(self.generator, settings.generator_lr, BETAS, fused=fused),
            torch.optim.Adam(self.discriminator, settings.discriminator_lr, BETAS, fused=fused),
        ]

    def step(self, step: int, images: Tensor, labels: Tensor) -> dict[str, Any]:
        """One update of each net, of step number `step` (from 0); what it gave, for the log."""
        images, labels = images.to(self.device), labels.to(self.device)
        made, again = (noise(self.net, len(labels), self.settings.seed, step, turn) for turn in (0, 1))
        with torch.no_grad():
            fake = self.net.generate(made, labels)
        # One pass for both, so that both meet the same normalised weights.
        scores = self.net.judge(torch.cat([images, fake]), torch.cat([labels, labels]))
        real_score, fake_score = scores.chunk(2)
        told = self.update("discriminator", discriminator_loss(real_score, fake_score), self.discriminator, step)
        fooled = generator_loss(self.net.judge(self.net.generate(again, labels), labels))
        lost = self.update("generator", fooled, self.generator, step)
        self.follow(step)
        return {"step": step + 1, "discriminator_loss": told, "generator_loss": lost,
                "real_score": real_score.mean().item(), "fake_score": fake_score.mean().item()}  # fmt: skip

    def update(self, name: str, loss: Tensor, parameters: list[nn.Parameter], step: int) -> float:
        """Move one net, unless something is not finite: then its weights stay, and the run ends."""
        if faults.point("step") == "nan-loss":
            loss = loss * math.nan
        loss.backward(inputs=parameters)
        norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        value, size = torch.stack([loss.detach(), norm]).tolist()
        if not (math.isfinite(value) and math.isfinite(size)):
            what = f"the loss is {value}" if not math.isfinite(value) else f"the gradients' norm is {size}"
            raise Diverged(f"{what} at step {step + 1}", where=name, fix=AGAIN)
        optimizer = self.optimizers[0 if name == "generator" else 1]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return value

    @torch.no_grad()
    def follow(self, step: int) -> None:
        """The running mean takes in the new generator, quickly at first."""
        decay = min(self.settings.ema, (1 + step) / (10 + step))
        torch._foreach_lerp_(list(self.mean.parameters()), list(self.net.generator.parameters()), 1 - decay)

    # ------------------------------------------------------------ what is saved

    def weights(self) -> dict[str, Tensor]:
        """The weights to use: the mean generator with the discriminator."""
        return {**dict(self.net.named_parameters()), **{f"generator.{n}": p for n, p in self.mean.named_parameters()}}

    def memory(self) -> dict[str, Tensor]:
        """All else that going on needs."""
        raw = {f"raw.generator.{name}": p for name, p in self.net.generator.named_parameters()}
        return state_tensors(self.optimizers, self.names) | raw

    def load(self, weights: Mapping[str, Tensor], memory: Mapping[str, Tensor]) -> None:
        """Put a saved moment back, to the bit."""
        raw = {name.removeprefix("raw."): value for name, value in memory.items() if name.startswith("raw.")}
        put(self.net, dict(weights) | raw)
        put(self.mean, {name.removeprefix("generator."): value for name, value in weights.items()})
        restore(self.optimizers, self.names, {n: v for n, v in memory.items() if n.startswith("opt.")})


def noise(net: SAGANModule, rows: int, *numbers: int) -> Tensor:
    """Noise that follows from numbers, on every device the same."""
    generator = torch.Generator().manual_seed(seed_of(*numbers))
    return torch.randn(rows, net.spec.noise, generator=generator).to(next(net.parameters()).device)

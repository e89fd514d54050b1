"""The first losses of the product's step in bf16 beside those of a plain loop in float32."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.objectives import Causal
from anyformer.training.optim import AdamW, has_weight_decay
from anyformer.training.schedule import Constant
from benchmarks.gpu.jobs import OURS, Decoder, Place
from benchmarks.gpu.ours import PLANNED_STEPS, build_engine, settle, text_batch
from benchmarks.gpu.results import Row, machine
from benchmarks.gpu.text import zipf_text

STEPS = 50
SIZES = Decoder(12, 768, 12, batch=8, length=1024)
OPTIMIZER, SCHEDULE = AdamW(lr=6e-4), Constant(warmup=10)


def compare_losses(place: Place, out: Path | None) -> Row:
    """A row with the largest difference; the losses of every step go to a file of their own."""
    sizes, steps = (SIZES.shrunk(), 5) if place.quick else (SIZES, STEPS)
    text = zipf_text(steps * sizes.batch, sizes.length + 1, sizes.vocab)
    batches = list(text.split(sizes.batch))
    plain = train_plainly(sizes, batches, place.torch_device)  # first, while no kernel of ours is switched on
    mine = train_ours(sizes, batches, place.torch_device)
    if out is not None:
        with out.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["step", OURS, "plain float32"])
            writer.writerows([n, f"{a:.6f}", f"{b:.6f}"] for n, (a, b) in enumerate(zip(mine, plain, strict=True), 1))
    worst = max(abs(a - b) for a, b in zip(mine, plain, strict=True))
    work = f"GPT-2 124M, {sizes.batch} x {sizes.length}, the first {steps} losses"
    return {"job": "losses", "work": work, "system": OURS, "mode": "bf16 beside plain float32", "unit": "tokens",
            "batch": str(sizes.batch), "length": str(sizes.length), "depth": str(sizes.depth),
            "loss_difference": f"{worst:.4f}", "note": f"from {plain[0]:.3f} to {plain[-1]:.3f}",
            **machine()}  # fmt: skip


def train_ours(sizes: Decoder, batches: list[Tensor], device: torch.device) -> list[float]:
    """Losses of the product's own steps."""
    settings = settle(sizes.batch, device).replace(optimizer=OPTIMIZER, schedule=SCHEDULE)
    engine = build_engine(sizes.network(), Causal(), settings, device)
    moments = [engine.step(n, [text_batch(tokens)]) for n, tokens in enumerate(batches)]
    return [float(moment.loss) for moment in moments]


def train_plainly(sizes: Decoder, batches: list[Tensor], device: torch.device) -> list[float]:
    """The same model in float32, eager, by a loop of torch's own pieces."""
    model = sizes.network().build(seed=0, device=device).train()
    groups = [
        {"params": [p for name, p in model.named_parameters() if has_weight_decay(name, p) is decayed],
         "weight_decay": OPTIMIZER.weight_decay if decayed else 0.0}
        for decayed in (True, False)
    ]  # fmt: skip
    optimizer = torch.optim.AdamW(groups, lr=0.0, betas=OPTIMIZER.betas, eps=OPTIMIZER.eps)
    losses = []
    with full_precision():
        for step, tokens in enumerate(batches):
            for group in optimizer.param_groups:
                group["lr"] = OPTIMIZER.lr * SCHEDULE.factor(step, PLANNED_STEPS)
            inputs, targets = tokens[:, :-1].to(device), tokens[:, 1:].to(device)
            loss = F.cross_entropy(model(inputs).logits.flatten(0, 1), targets.flatten())
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(float(loss.detach()))
    return losses


@contextmanager
def full_precision() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)

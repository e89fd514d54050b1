"""Settings that need whole layers or matrices, with models in parts: how far each process is from one alone."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from anyformer import (
    LM,
    MLP,
    Alibi,
    Attention,
    Block,
    Buckets,
    Electra,
    LowRank,
    Model,
    Network,
    Replaced,
    Rope,
    Shaw,
    Stack,
)  # fmt: skip
from anyformer import Tokens as Words
from anyformer.norms.rms import RMSNorm
from anyformer.objectives import Batch, Causal, Objective, ReplacedByGenerator
from anyformer.objectives.masked import Masked
from anyformer.slots import Mixer, Relative
from anyformer.training.distributed.parallel import Parallel
from anyformer.training.distributed.parts import whole
from anyformer.training.distributed.peers import Peers, join
from anyformer.training.distributed.tensor import TensorParallel
from anyformer.training.distributed.world import read_world
from anyformer.training.duration import Plan
from anyformer.training.freezing import Gradual
from anyformer.training.lora import LoRA
from anyformer.training.optim import AdamW, Muon
from anyformer.training.settings import Training
from anyformer.training.step import TrainingEngine
from tests.training.distributed.checks import KINDS, one_process
from tests.training.test_engine import apart

VOCAB, ROWS, LENGTH, STEPS = 24, 8, 12, 6


def decoder(relative: Relative | None = None, mixer: Mixer | None = None) -> Network:
    """Four heads, a gated MLP; its embedding and head share a table."""
    mixer = Attention(heads=4) if mixer is None else mixer
    block = Block(mixer=mixer, relative=Rope() if relative is None else relative, feed=MLP(gated=True))
    return Model(embed=Words(vocab=VOCAB), stack=Stack(width=16, depth=3, causal=True, block=block), head=LM(tied=True))


def encoder(mixer: Mixer) -> Network:
    stack = Stack(width=16, depth=2, block=Block(mixer=mixer, feed=MLP()))
    return Model(embed=Words(vocab=VOCAB), stack=stack, head=LM())


def electra() -> Network:
    block = Block(mixer=Attention(heads=8), feed=MLP(width=32))
    stack = Stack(width=32, depth=2, block=block)
    return Electra(discriminator=Model(embed=Words(vocab=VOCAB, inner=16), stack=stack, head=Replaced()), share=0.5)


class Trial(NamedTuple):
    """A network and settings; `kinds` are the ways of sharing that are tried."""

    spec: Callable[[], Network]
    settings: dict[str, Any] = {}
    objective: Objective = Causal()
    kinds: tuple[str, ...] = ("fsdp", "tensor")


ADAPTERS = LoRA(rank=3, trained=("embed",), targets=("*.blocks.*",))
SOME = LoRA(rank=2, targets=("*.blocks.*",), projections=("q", "v", "gate"))
TENSOR = ("tensor",)
TRIALS = {
    "lora": Trial(decoder, {"lora": ADAPTERS}, kinds=("ddp", "fsdp", "tensor")),
    "lora projections": Trial(decoder, {"lora": SOME}),
    "muon": Trial(decoder, {"optimizer": Muon(lr=0.01, others=AdamW(lr=1e-3))}),
    "freeze": Trial(decoder, {"freeze": ("embed", "stack.blocks.0")}),
    "unfreeze": Trial(decoder, {"unfreeze": Gradual()}),
    "alibi": Trial(lambda: decoder(Alibi()), kinds=TENSOR),
    "buckets": Trial(lambda: decoder(Buckets(buckets=8, distance=16)), kinds=TENSOR),
    "shaw": Trial(lambda: decoder(Shaw(4)), kinds=TENSOR),
    "qk_norm": Trial(lambda: decoder(mixer=Attention(heads=4, qk_norm=RMSNorm())), kinds=TENSOR),
    "low rank": Trial(lambda: encoder(LowRank(heads=4, rank=3, longest=LENGTH)), kinds=TENSOR),
    "electra": Trial(electra, {}, ReplacedByGenerator(masked=Masked(random=0.0, keep=0.0))),
}


def batch_of(trial: Trial, step: int, first: int, last: int) -> Batch:
    """Some rows of a step; rows have unlike numbers of targets."""
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(4, VOCAB, (ROWS, LENGTH), generator=generator)
    if isinstance(trial.objective, Causal):
        return Batch((tokens[first:last],), tokens.roll(-1, 1)[first:last], torch.arange(first, last))
    hidden = torch.rand(tokens.shape, generator=generator) < 0.3
    hidden[:, 0] = True
    inputs, targets = tokens.masked_fill(hidden, 3), tokens.masked_fill(~hidden, -100)
    return Batch((inputs[first:last],), targets[first:last], torch.arange(first, last))


class Trained(NamedTuple):
    """A training of some steps: gradients of the first, losses of all, weights before and after."""

    gradients: dict[str, Tensor]
    losses: list[float]
    begun: dict[str, Tensor]
    ended: dict[str, Tensor]


def train(trial: Trial, parallel: Parallel, steps: int) -> Trained:
    chosen: dict[str, Any] = {"batch_size": ROWS, "precision": "fp32", "compile": False, "seed": 1, "grad_clip": 0.5}
    settings = Training(**chosen | trial.settings)
    model = parallel.build(trial.spec(), settings)
    engine = TrainingEngine(model, trial.objective, settings, Plan(STEPS), parallel)
    begun = {name: whole(value).clone() for name, value in engine.weights().items()}
    gradients: dict[str, Tensor] = {}
    move = engine.update.move

    def look(optimizers: list[torch.optim.Optimizer], norm: Tensor, loss: Tensor) -> bool:
        if not gradients:
            named = engine.model.named_parameters()
            gradients.update({name: whole(p.grad).clone() for name, p in named if p.grad is not None})
            gradients["norm"] = norm.detach().clone()
        return move(optimizers, norm, loss)

    engine.update.move = look  # type: ignore[method-assign]
    losses, micro = [], ROWS // 4
    for step in range(steps):
        rule = settings.unfreeze
        if rule is not None:
            engine.train_last(rule.trained_layers(step / 2, len(engine.layers)))
        if step == STEPS // 2:
            with engine.evaluating() as network, torch.no_grad():  # what gathers weights must let go of them
                network(*batch_of(trial, step, 0, 2).inputs)
        each = 4 // parallel.parts
        firsts = [micro * (parallel.part * each + i) for i in range(each)]
        micros = [batch_of(trial, step, first, first + micro) for first in firsts]
        losses.append(float(engine.step(step, micros).loss))
    return Trained(gradients, losses, begun, {n: whole(v).clone() for n, v in engine.weights().items()})


class Unsummed(TensorParallel):
    """A control: what all processes hold whole keeps the gradient of this process's heads."""

    def backward(self, loss: Tensor, leaves: list[nn.Parameter] | None, *, last: bool) -> None:
        loss.backward(inputs=leaves)


def compare(trial: Trial, kind: type[Parallel], peers: Peers) -> dict[str, float]:
    """How far several processes are from one with the same micro-batches, in double precision and in single."""
    alone, shared = train(trial, one_process(peers), 1), train(trial, kind(peers), 1)
    gradients = apart(shared.gradients, alone.gradients)
    starts = float(all(torch.equal(value, alone.begun[name]) for name, value in shared.begun.items()))
    torch.set_default_dtype(torch.float64)
    try:
        alone, shared = train(trial, one_process(peers), STEPS), train(trial, kind(peers), STEPS)
    finally:
        torch.set_default_dtype(torch.float32)
    curve = max(abs(a - b) for a, b in zip(alone.losses, shared.losses, strict=True))
    moved = sum(float((alone.ended[name] - alone.begun[name]).norm()) for name in alone.begun)
    return {"gradients": gradients, "starts": starts, "curve": curve, "moved": moved,
            "weights": apart(shared.ended, alone.ended)}  # fmt: skip


def main(folder: str, *names: str) -> int:
    """All of them, or some by name."""
    torch.set_num_threads(1)
    with join(read_world(os.environ), "cpu") as peers:
        found = {
            f"{kind} {name}": compare(trial, KINDS[kind], peers)
            for name, trial in TRIALS.items() if not names or name in names
            for kind in trial.kinds
        }  # fmt: skip
        control = TRIALS["lora"]
        alone, shared = train(control, one_process(peers), 1), train(control, Unsummed(peers), 1)
        found["control"] = {"gradients": apart(shared.gradients, alone.gradients)}
        Path(folder, f"{peers.world.size}-{peers.world.rank}.json").write_text(json.dumps(found))
    return 0

"""What several processes measure together; each writes its figures, and the test that started them compares."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from anyformer import LM, MLP, Attention, Block, Model, Network, Rope, Stack
from anyformer import Tokens as Words
from anyformer.training.distributed.gradient_sum import GradientSum
from anyformer.training.distributed.parallel import Parallel
from anyformer.training.distributed.parts import local, whole
from anyformer.training.distributed.peers import Peers, join
from anyformer.training.distributed.replicated import ReplicatedParallel
from anyformer.training.distributed.sharded import ShardedParallel
from anyformer.training.distributed.tensor import TensorParallel
from anyformer.training.distributed.world import ALONE, read_world
from anyformer.training.duration import Plan
from anyformer.training.loader import Steps
from anyformer.training.settings import Training
from anyformer.training.step import TrainingEngine
from tests.training.test_engine import NETS, OBJECTIVES, VOCAB, apart, steps_for

KINDS: dict[str, type[Parallel]] = {
    "ddp": ReplicatedParallel,
    "fsdp": ShardedParallel,
    "tensor": TensorParallel,
}
BATCH, CURVE = 12, 50  # 32 rows: batches of 12, 12 and 8


class Unsummed(ReplicatedParallel):
    """A control: processes that never hear of each other's gradients."""

    def backward(self, loss: Tensor, leaves: list[nn.Parameter] | None, *, last: bool) -> None:
        loss.backward(inputs=leaves)


def one_process(peers: Peers) -> Parallel:
    """What the others are compared with."""
    return Parallel(Peers(ALONE, peers.device))


def gated() -> Network:
    """Four heads on four key/value heads, a gated MLP, a table that embedding and head share."""
    block = Block(mixer=Attention(heads=4, kv_heads=4), relative=Rope(), feed=MLP(gated=True))
    return Model(embed=Words(vocab=VOCAB), stack=Stack(width=16, depth=2, causal=True, block=block), head=LM(tied=True))


def engine_of(spec: Network, task: str, parallel: Parallel, batch: int, **other: Any) -> tuple[TrainingEngine, Steps]:
    """An engine and the batches of this process."""
    chosen: dict[str, Any] = {"batch_size": batch, "precision": "fp32", "compile": False, "seed": 1} | other
    settings = Training(**chosen)
    model = parallel.build(spec, settings)
    steps = steps_for(task, max(1, batch // parallel.parts), batch, torch.get_default_dtype())
    steps.part, steps.parts = parallel.part, parallel.parts
    return TrainingEngine(model, OBJECTIVES[task], settings, Plan(CURVE), parallel), steps


def gradients_of(engine: TrainingEngine, steps: Steps, step: int) -> dict[str, Tensor]:
    """The gradients of a step as the optimizer sees them, whole, with the loss and the norm; nothing is moved."""
    found: dict[str, Tensor] = {}

    def look(optimizers: list[torch.optim.Optimizer], norm: Tensor, loss: Tensor) -> bool:
        named = engine.model.named_parameters()
        found.update({name: whole(p.grad) for name, p in named if p.grad is not None})
        found["loss"], found["norm"] = loss.detach().clone(), norm.detach().clone()
        return False

    engine.update.move = look  # type: ignore[method-assign]
    engine.step(step, steps[step])
    return found


def compare_gradients(task: str, kind: type[Parallel], peers: Peers) -> float:
    """How far a step is from that of one process with the whole batch; the last batch of an epoch is a small one."""
    spec = gated() if task == "gated" else NETS[task](0.0)
    worst = 0.0
    for step in (0, 2) if task == "gated" else (2,):
        kind_of = "lm" if task == "gated" else task
        alone = gradients_of(*engine_of(spec, kind_of, one_process(peers), BATCH, grad_clip=1e9), step)
        shared = gradients_of(*engine_of(spec, kind_of, kind(peers), BATCH, grad_clip=1e9), step)
        worst = max(worst, apart(shared, alone))
    return worst


def curve(spec: Network, parallel: Parallel, **other: Any) -> list[float]:
    """The losses of a training, with clipping at work."""
    engine, steps = engine_of(spec, "lm", parallel, BATCH, grad_clip=0.5, **other)
    return [float(engine.step(step, steps[step]).loss) for step in range(CURVE)]


def compare_curves(kind: type[Parallel], peers: Peers) -> float:
    """The largest difference of a loss over 50 steps in double precision."""
    torch.set_default_dtype(torch.float64)
    try:
        alone, shared = curve(gated(), one_process(peers)), curve(gated(), kind(peers))
    finally:
        torch.set_default_dtype(torch.float32)
    assert alone[-1] < alone[0] - 0.05  # there is something to compare
    return max(abs(a - b) for a, b in zip(alone, shared, strict=True))


def starts_alike(kind: type[Parallel], peers: Peers) -> bool:
    """Whether the first weights are those of one process, bit for bit."""
    for init in ("gpt2", "t5"):
        spec = gated().replace(init=init)
        here = kind(peers).build(spec, Training(seed=3))
        alone = dict(spec.build(seed=3, device=peers.device).named_parameters())
        if not all(torch.equal(whole(p), alone[name]) for name, p in here.named_parameters()):
            return False
    return True


class Used(nn.Module):
    """Three parameters: one that all processes use, one that the first uses, one that nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        self.all, self.one, self.none = (nn.Parameter(torch.ones(3)) for _ in range(3))

    def forward(self, rank: int) -> Tensor:
        loss = (self.all * (rank + 1)).sum()
        return loss + (self.one * 5).sum() if rank == 0 else loss


def sum_unused(peers: Peers) -> list[list[float] | None]:
    """The gradients of each after they were added up; None where there is none."""
    model = Used()
    gradients = GradientSum(model)
    gradients.arm()
    model(peers.world.rank).backward()
    gradients.wait()
    return [None if p.grad is None else p.grad.tolist() for p in (model.all, model.one, model.none)]


def bytes_held(kind: type[Parallel], peers: Peers) -> int:
    """Bytes of parameters, gradients and optimizer in this process after a step."""
    engine, steps = engine_of(gated().replace(stack=gated().stack.replace(width=64)), "lm", kind(peers), BATCH)
    seen: list[int] = []
    update = engine.update.move

    def look(optimizers: list[torch.optim.Optimizer], norm: Tensor, loss: Tensor) -> bool:
        seen.append(sum(size(p.grad) for p in engine.model.parameters() if p.grad is not None))
        return update(optimizers, norm, loss)

    engine.update.move = look  # type: ignore[method-assign]
    engine.step(0, steps[0])
    kept = [*engine.model.parameters(), *engine.memory().values()]
    return sum(map(size, kept)) + seen[0]


def size(tensor: Tensor) -> int:
    return local(tensor).numel() * tensor.element_size()


def main(folder: str, *tasks: str) -> int:
    """Every way of sharing, on these tasks; and `control`, the one that must fail."""
    torch.set_num_threads(1)
    with join(read_world(os.environ), "cpu") as peers:
        found: dict[str, Any] = {}
        for name, kind in KINDS.items():
            found[name] = {
                "gradients": {task: compare_gradients(task, kind, peers) for task in tasks},
                "curve": compare_curves(kind, peers),
                "starts": starts_alike(kind, peers),
                "bytes": bytes_held(kind, peers),
            }
        found["unused"] = sum_unused(peers)
        found["control"] = compare_gradients("lm", Unsummed, peers)
        found["alone"] = bytes_held(Parallel, Peers(ALONE, peers.device))
        Path(folder, f"{peers.world.size}-{peers.world.rank}.json").write_text(json.dumps(found))
    return 0

"""The training step on a GPU: master weights, steps as CUDA graphs, and the kernels of GELU and AdamW."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import anyformer
from anyformer import LM, MLP, Attention, Block, Experts, Model, Stack, Tokens
from anyformer.kernels import row_gradient
from anyformer.kernels.int8 import look_up
from anyformer.objectives import Batch, Causal, Classify
from anyformer.training import step_graph
from anyformer.training.duration import Plan
from anyformer.training.optim import AdamW, Muon
from anyformer.training.settings import Training
from anyformer.training.step import TrainingEngine
from anyformer.training.step_graph import refusing_waits
from anyformer.training.update import KernelUpdate

pytestmark = [pytest.mark.device, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
CUDA = torch.device("cuda")
VOCAB, STEPS = 101, 12


def decoder(dropout: float = 0.1, feed: Any = None) -> Model:
    block = Block(mixer=Attention(heads=4, dropout=dropout), feed=MLP() if feed is None else feed, dropout=dropout)
    stack = Stack(width=64, depth=2, causal=True, block=block)
    return Model(embed=Tokens(vocab=VOCAB), stack=stack, head=LM())


def batch_of(step: int, rows: int = 8) -> Batch:
    draw = torch.Generator().manual_seed(step)
    tokens = torch.randint(0, VOCAB, (rows, 33), generator=draw)
    tokens[:, 1::2] = tokens[:, :-1:2]  # every second token repeats the one before: something to learn
    return Batch((tokens[:, :-1],), tokens[:, 1:].contiguous(), torch.arange(rows))


def engine_for(spec: Model, **training: Any) -> TrainingEngine:
    chosen = {"steps": STEPS, "batch_size": 8, "micro_batch_size": 8, "precision": "bf16", "compile": False} | training
    return TrainingEngine(spec.build(seed=1, device=CUDA), Causal(), Training(**chosen), Plan(STEPS))


def losses_of(engine: TrainingEngine, first: int = 0, last: int = STEPS, rows: int = 8) -> list[float]:
    return [float(engine.step(step, [batch_of(step, rows)]).loss) for step in range(first, last)]


@pytest.fixture
def deterministic(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


# ---------------------------------------------------------------- master weights


@pytest.mark.parametrize("graph", [False, True])
def test_bf16_weights_with_masters_follow_the_plain_fp32_loop(graph: bool) -> None:
    """A plain loop in single precision without any of it; bf16 keeps 8 bits, which the curve shows as about 1 %."""
    model = decoder(0.0).build(seed=1, device=CUDA)
    optimizer = AdamW().build(model)[0]
    schedule, plan = Training().schedule, Plan(STEPS)
    plain = []
    for step in range(STEPS):
        batch = batch_of(step).to(CUDA)
        loss = F.cross_entropy(model(*batch.inputs).logits.flatten(0, 1), batch.targets.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = group["full"] * plan.factor(schedule, step)
        optimizer.step()
        optimizer.zero_grad()
        plain.append(float(loss.detach()))
    engine = engine_for(decoder(0.0), cuda_graph=graph)
    found = losses_of(engine)
    assert found == pytest.approx(plain, rel=1e-2)
    assert plain[-1] < plain[0]
    assert engine.model.head.rows(engine.model.table()).dtype == torch.bfloat16
    assert all(value.dtype == torch.float32 for value in engine.weights().values())
    weights = engine.weights()
    apart = [
        float((weights[name] - p.data).norm() / p.data.norm()) for name, p in model.named_parameters() if p.dim() > 1
    ]
    assert max(apart) < 2e-2


def test_small_updates_are_not_lost() -> None:
    """The control of master weights: bf16 alone forgets an update below 1/256 of a weight."""
    engine = engine_for(decoder(0.0), optimizer=AdamW(lr=1e-5, weight_decay=0.0))
    before = {name: value.clone() for name, value in engine.weights().items()}
    narrow = {name: p.detach().clone() for name, p in engine.model.named_parameters()}
    losses_of(engine, 0, 2)
    name = "stack.blocks.0.feed.up.weight"
    moved = (engine.weights()[name] != before[name]).float().mean()
    rounded = (dict(engine.model.named_parameters())[name] != narrow[name]).float().mean()
    assert float(moved) > 0.95 and float(rounded) < 0.5


def test_what_is_judged_saved_and_left_behind_is_in_full_precision() -> None:
    engine = engine_for(decoder(), ema=0.9)
    losses_of(engine)
    with engine.evaluating() as model:
        assert all(p.dtype == torch.float32 for p in model.parameters())
        mean = {name: p.detach().clone() for name, p in model.named_parameters()}
    assert any(p.dtype == torch.bfloat16 for p in engine.model.parameters())
    raw = engine.memory()
    assert not torch.equal(mean["embed.table.weight"], raw["raw.embed.table.weight"])
    engine.release()
    assert all(p.dtype == torch.float32 for p in engine.model.parameters())
    assert torch.equal(dict(engine.model.named_parameters())["embed.table.weight"], raw["raw.embed.table.weight"])


# ---------------------------------------------------------------- CUDA graphs


@pytest.mark.parametrize("optimizer", [AdamW(), Muon()])
def test_a_recorded_step_gives_the_bits_of_a_plain_one(optimizer: Any, deterministic: Any) -> None:
    """Dropout, learning rate, seeds and a smaller last batch included."""
    runs = []
    for graph in (False, True):
        engine = engine_for(decoder(), cuda_graph=graph, optimizer=optimizer)
        losses = losses_of(engine, 0, 8)
        losses += losses_of(engine, 8, 9, rows=5)
        losses += losses_of(engine, 9, STEPS)
        assert (engine.graph is not None and engine.graph.graph is not None) is graph
        runs.append((losses, {name: value.clone() for name, value in engine.weights().items()}))
    assert runs[0][0] == runs[1][0]
    assert all(torch.equal(runs[0][1][name], runs[1][1][name]) for name in runs[0][1])
    assert len(set(runs[0][0])) == STEPS


def test_a_recorded_step_of_blended_images_gives_the_bits_of_a_plain_one(deterministic: Any) -> None:
    """CutMix and mixup: which row each is blended with and the share of it change from step to step."""
    runs = []
    for graph in (False, True):
        spec = anyformer.preset("vit-b16-tiny")
        settings = Training(steps=STEPS, batch_size=16, micro_batch_size=16, precision="bf16", compile=False,
                            cuda_graph=graph)  # fmt: skip
        objective = Classify(mixup=0.8, cutmix=1.0)
        engine = TrainingEngine(spec.build(seed=1, device=CUDA), objective, settings, Plan(STEPS))
        losses = []
        for step in range(STEPS):
            draw = torch.Generator().manual_seed(step)
            images, targets = torch.randn(16, 3, 32, 32, generator=draw), torch.randint(0, 10, (16,), generator=draw)
            blended = objective.prepare(Batch((images,), targets, torch.arange(16)), draw)
            losses.append(float(engine.step(step, [blended]).loss))
        assert (engine.graph is not None and engine.graph.graph is not None) is graph
        runs.append((losses, {name: value.clone() for name, value in engine.weights().items()}))
    assert runs[0][0] == runs[1][0]
    assert all(torch.equal(runs[0][1][name], runs[1][1][name]) for name in runs[0][1])


def test_a_seed_makes_other_dropout_in_a_recorded_step() -> None:
    """The control: were the random numbers of the recording used again, both runs would be one."""
    runs = [losses_of(engine_for(decoder(0.3), seed=seed)) for seed in (0, 0, 7)]
    assert runs[0] == pytest.approx(runs[1], rel=1e-3) and runs[0][5:] != pytest.approx(runs[2][5:], rel=1e-3)


def test_what_waits_for_the_card_is_not_recorded_and_trains() -> None:
    """Experts ask how many tokens each got; the step says so once and goes on without a graph."""
    engine = engine_for(decoder(0.0, feed=Experts(count=4)))
    losses = losses_of(engine)
    assert engine.graph is not None and engine.graph.lost and engine.graph.graph is None
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("share", [0.0, 2.0])
def test_launches_decide_whether_a_step_is_recorded(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_graph, "SMALL", 1.0)
    monkeypatch.setattr(step_graph, "LAUNCHES", share)  # nothing takes less than 0 of a step, or more than twice of it
    engine = engine_for(anyformer.replace_in(decoder(0.0), {"stack.width": 256}))
    losses = losses_of(engine)
    assert engine.graph is not None and (engine.graph.graph is not None) is (share == 0.0)
    assert isinstance(engine.update, KernelUpdate) and losses[-1] < losses[0]


def test_a_step_that_needs_most_of_the_memory_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SMALL", "LAUNCHES", "MEMORY"):
        monkeypatch.setattr(step_graph, name, 0.0)
    engine = engine_for(decoder(0.0))
    losses_of(engine, 0, 6)
    assert engine.graph is not None and "memory" in engine.graph.lost and engine.graph.graph is None


def test_the_deterministic_gradient_of_few_rows_is_that_of_a_scatter(deterministic: Any) -> None:
    ids = torch.randint(65, (4, 300), device=CUDA)
    rows = torch.randn(65, 32, device=CUDA, requires_grad=True)
    assert row_gradient.wanted(rows)
    found = look_up(ids, rows)
    there = torch.randn_like(found)
    (grad,) = torch.autograd.grad(found, rows, there)
    wanted = torch.zeros(65, 32, dtype=torch.float64, device=CUDA).index_put_((ids,), there.double(), accumulate=True)
    assert torch.equal(found, rows[ids])
    assert float((grad - wanted).norm() / wanted.norm()) < 2e-3  # products of float32 may be made in TF32


def test_nothing_moves_from_a_bad_step_on() -> None:
    engine = engine_for(decoder(0.0))
    losses_of(engine, 0, 6)
    assert engine.graph is not None and engine.graph.graph is not None
    kept = {name: value.clone() for name, value in engine.weights().items()}
    table = dict(engine.model.named_parameters())["embed.table.weight"]
    table.data[3, 0] = float("nan")  # of the narrow copy: the master stays whole
    engine.step(6, [batch_of(6)])
    engine.step(7, [batch_of(7)])
    assert all(torch.equal(kept[name], value) for name, value in engine.weights().items())


@pytest.mark.parametrize("graph", [False, True])
def test_a_step_waits_for_nothing(graph: bool) -> None:
    """A wait at the end of a step leaves the GPU idle while the next one is launched: 5 of 60 ms, when it was met."""
    engine = engine_for(decoder(), cuda_graph=graph)
    losses_of(engine, 0, 6)
    assert (engine.graph is not None) is graph
    made = [batch_of(step) for step in (6, 7, 8)]
    batches = [Batch((b.inputs[0].pin_memory(),), b.targets.pin_memory(), b.rows) for b in made]
    with refusing_waits():
        for step, batch in enumerate(batches, 6):
            engine.step(step, [batch])
        with pytest.raises(RuntimeError, match="synchronizing"):
            float(engine.update.bad)  # the control


# ---------------------------------------------------------------- kernels


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("act", ["gelu", "gelu_tanh", "silu"])
@pytest.mark.parametrize("shape", [(3, 5, 24), (2, 700, 130)])
def test_activations_against_double_precision(act: Any, gated: bool, shape: tuple[int, ...]) -> None:
    from anyformer.core import activation as reference
    from anyformer.kernels import activation

    assert activation.enable(CUDA, act, gated) and (act, gated) in reference.fused_forms
    draw = torch.Generator("cuda").manual_seed(0)
    x = torch.randn(shape, device=CUDA, generator=draw)
    spec = MLP(width=200, act=act, gated=gated)
    weights = {name: 0.3 * torch.randn(p.shape, device=CUDA, generator=draw)
               for name, p in spec.build(shape[-1]).named_parameters()}  # fmt: skip
    results: list[list[Tensor]] = []
    for dtype in (torch.float32, torch.float64):
        feed: Any = spec.build(shape[-1]).to(device=CUDA, dtype=dtype)
        feed.load_state_dict(weights)
        given = x.clone().to(dtype).detach().requires_grad_()
        with torch.autocast("cuda", torch.bfloat16, enabled=dtype is torch.float32):
            assert feed.can_fuse(given) is (dtype is torch.float32)
            y = feed(given)
        y.backward(torch.ones_like(y))
        results.append([y.detach(), given.grad, *(p.grad for p in feed.parameters())])  # type: ignore[list-item]
    for ours, exact in zip(*results, strict=True):
        assert float((ours.double() - exact).norm() / exact.norm()) < 2e-2


def test_the_update_of_adamw_is_torchs_for_any_shapes_and_groups() -> None:
    from anyformer.kernels import adamw

    assert adamw.enable(CUDA)
    draw = torch.Generator("cuda").manual_seed(0)
    shapes = [(5000, 33), (7,), (64, 64), (1,), (3, 3, 3, 3)]
    starts = [torch.randn(shape, device=CUDA, generator=draw) for shape in shapes]
    ours, theirs = ([nn.Parameter(s.clone()) for s in starts] for _ in range(2))
    masters = {id(p): p.data for p in ours[::2]}
    for parameter in ours[::2]:
        parameter.data = parameter.data.bfloat16()

    def groups(of: list[nn.Parameter]) -> list[dict[str, Any]]:
        return [{"params": of[:2], "lr": torch.tensor(1e-2, device=CUDA), "weight_decay": 0.2},
                {"params": of[2:], "lr": torch.tensor(3e-3, device=CUDA), "weight_decay": 0.0}]  # fmt: skip

    mine = torch.optim.AdamW(groups(ours), betas=(0.8, 0.95), eps=1e-6, fused=True)
    reference = torch.optim.AdamW(groups(theirs), betas=(0.8, 0.95), eps=1e-6, fused=True)
    one, zero = torch.ones((), device=CUDA), torch.zeros((), device=CUDA)
    for step in range(5):
        for a, b in zip(ours, theirs, strict=True):
            grad = torch.randn(b.shape, device=CUDA, generator=draw).bfloat16().float()
            a.grad, b.grad = (None, None) if step == 2 and b.dim() == 1 else (grad.to(a.dtype), grad * 0.25)
        adamw.update(mine, masters, 0.25 * one, zero)
        reference.step()
    frozen = [masters.get(id(p), p.data).clone() for p in ours]
    adamw.update(mine, masters, one, one)  # something was not finite
    for parameter, start, like, still in zip(ours, starts, theirs, frozen, strict=True):
        value = masters.get(id(parameter), parameter.data)
        assert float((value - like.data).norm() / (like.data - start).norm()) < 2e-5
        assert torch.equal(value, still) and torch.equal(parameter.data, value.to(parameter.dtype))
        assert float(mine.state[parameter]["step"]) == float(reference.state[like]["step"])

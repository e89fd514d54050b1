"""One step, and what it must equal: the big batch, the same step elsewhere, every position by itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from anyformer import (
    LM,
    Attention,
    Block,
    Cross,
    Model,
    Network,
    Pooled,
    Regress,
    Rope,
    Seq2Seq,
    Stack,
    Table,
    TokenHead,
)
from anyformer import Tokens as Words
from anyformer.checkpoints import store, tensors
from anyformer.data.examples import Draw, Examples
from anyformer.data.order import Order
from anyformer.errors import UserError
from anyformer.objectives import Batch, Causal, Classify, Objective, Regression, Tag, Translate
from anyformer.training.checkpoint import mean_of
from anyformer.training.duration import Plan
from anyformer.training.loader import Steps, make_batches, seed_of
from anyformer.training.muon import BatchedMuon
from anyformer.training.optim import AdamW, Muon, Optimizer, restore, state_tensors
from anyformer.training.schedule import WSD, Constant, Cosine, InverseSqrt, Linear, Schedule
from anyformer.training.settings import Training
from anyformer.training.step import TrainingEngine

VOCAB, WIDTH, CLASSES, ROWS = 19, 16, 3, 32


# ---------------------------------------------------------------- small nets and ragged rows


def net(embed: Any, head: Any, *, causal: bool = False, dropout: float = 0.0, cross: bool = False) -> Model:
    block = Block(mixer=Attention(heads=4), relative=Rope(), dropout=dropout, cross=Cross(heads=4) if cross else None)
    return Model(embed=embed, stack=Stack(width=WIDTH, depth=2, causal=causal, block=block), head=head, init="xavier")


class Rows(Examples):
    """32 rows of unlike lengths, of any task; a batch is padded to its own longest row."""

    def __init__(self, task: str, dtype: torch.dtype = torch.float32) -> None:
        self.task, self.dtype = task, dtype
        chance = np.random.default_rng(3)
        self.sizes = chance.integers(2, 12, ROWS)
        self.ids = [chance.integers(1, VOCAB, size) for size in self.sizes]
        self.wanted = [chance.integers(1, VOCAB, size) for size in self.sizes]
        self.tags = [
            np.where(chance.random(size) < 0.4, -100, chance.integers(0, CLASSES, size)) for size in self.sizes
        ]
        self.classes = np.where(np.arange(ROWS) % 7 == 3, -100, chance.integers(0, CLASSES, ROWS))
        self.numbers = chance.normal(size=(ROWS, 4))
        self.values = np.where(chance.random((ROWS, 2)) < 0.3, np.nan, chance.normal(size=(ROWS, 2)))

    def __len__(self) -> int:
        return ROWS

    def place(self, row: int) -> str:
        return f"row {row}"

    @property
    def lengths(self) -> np.ndarray | None:
        return None if self.task in ("classify", "regress") else self.sizes

    def padded(self, lists: list[np.ndarray], rows: np.ndarray, fill: int) -> Tensor:
        found = np.full((len(rows), self.sizes[rows].max()), fill)
        for at, row in enumerate(rows):
            found[at, : self.sizes[row]] = lists[row]
        return torch.from_numpy(found)

    def batch(self, rows: Sequence[int] | np.ndarray, draw: Draw | None = None) -> Batch:
        at = np.asarray(rows)
        numbers = torch.from_numpy(at.copy())
        if self.task == "classify":
            inputs = torch.from_numpy(self.numbers[at]).to(self.dtype)
            return Batch((inputs, None), torch.from_numpy(self.classes[at]), numbers)
        if self.task == "regress":
            inputs = torch.from_numpy(self.numbers[at]).to(self.dtype)
            return Batch((inputs, None), torch.from_numpy(self.values[at]).to(self.dtype), numbers)
        ids, mask = self.padded(self.ids, at, 0), self.padded([np.ones(n) for n in self.sizes], at, 0) > 0
        if self.task == "lm":
            return Batch((ids,), self.padded(self.wanted, at, -100), numbers)
        if self.task == "tag":
            return Batch((ids,), self.padded(self.tags, at, -100), numbers, {"mask": mask})
        named = {"source_mask": mask, "target_mask": mask}
        wanted = self.padded(self.wanted, at, -100)
        before = torch.cat([torch.zeros(len(at), 1, dtype=torch.long), wanted[:, :-1].clamp(min=0)], 1)
        return Batch((ids, before), wanted, numbers, named)


NETS: dict[str, Callable[[float], Network]] = {
    "lm": lambda p: net(Words(vocab=VOCAB), LM(), causal=True, dropout=p),
    "classify": lambda p: net(Table(numbers=4), Pooled(classes=CLASSES), dropout=p),
    "regress": lambda p: net(Table(numbers=4), Regress(outputs=2), dropout=p),
    "tag": lambda p: net(Words(vocab=VOCAB), TokenHead(classes=CLASSES), dropout=p),
    "translate": lambda p: Seq2Seq(
        encoder=net(Words(vocab=VOCAB), None, dropout=p), head=LM(),
        decoder=net(Words(vocab=VOCAB), None, causal=True, cross=True, dropout=p),
    ),
}  # fmt: skip
OBJECTIVES: dict[str, Objective] = {
    "lm": Causal(), "classify": Classify(weights=(0.5, 1.0, 3.0), label_smoothing=0.1), "regress": Regression(),
    "tag": Tag(), "translate": Translate(),
}  # fmt: skip
TASKS = list(NETS)


def engine_for(
    task: str, *, dtype: torch.dtype = torch.float32, dropout: float = 0.0, total: int = 20, **training: Any
) -> TrainingEngine:
    network = NETS[task](dropout).build(seed=1, dtype=dtype)
    chosen = {
        "steps": total,
        "batch_size": ROWS,
        "micro_batch_size": ROWS,
        "precision": "fp32",
        "compile": False,
    } | training
    return TrainingEngine(network, OBJECTIVES[task], Training(**chosen), Plan(total))


def steps_for(task: str, micro: int, batch: int = ROWS, dtype: torch.dtype = torch.float32) -> Steps:
    rows = Rows(task, dtype)
    return Steps(rows, Order.of(rows, batch, seed=5), OBJECTIVES[task], micro)


def gradients(engine: TrainingEngine, micros: list[Batch], step: int = 0) -> dict[str, Tensor]:
    """The gradients of a step as the optimizer would see them, and the loss; nothing is moved."""
    found: dict[str, Tensor] = {}

    def look(optimizers: list[torch.optim.Optimizer], norm: Tensor, loss: Tensor) -> bool:
        found.update({name: p.grad.clone() for name, p in engine.model.named_parameters() if p.grad is not None})
        found["loss"] = loss.detach().clone()
        return False

    engine.update.move = look  # type: ignore[method-assign]
    engine.step(step, micros)
    return found


def apart(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """How far two sets of gradients are apart, relative to their size."""
    assert one.keys() == other.keys()
    off = sum(float((one[name].double() - other[name].double()).square().sum()) for name in one)
    return math.sqrt(off / sum(float(value.double().square().sum()) for value in other.values()))


# ---------------------------------------------------------------- accumulation


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
def test_accumulation_equals_the_big_batch(task: str, dtype: torch.dtype, limit: float) -> None:
    """1 x 32, 8 x 4, 32 x 1 and a last part of 2; rows of unlike lengths, so that parts have unlike weights."""
    whole = gradients(engine_for(task, dtype=dtype, grad_clip=1e9), steps_for(task, ROWS, dtype=dtype)[0])
    assert len(whole) > 10
    for micro in (1, 4, 6):
        micros = steps_for(task, micro, dtype=dtype)[0]
        assert len(micros) == -(-ROWS // micro)
        assert len({OBJECTIVES[task].weight(batch) for batch in micros}) > 1
        assert apart(gradients(engine_for(task, dtype=dtype, grad_clip=1e9), micros), whole) <= limit


@pytest.mark.parametrize("task", TASKS)
def test_a_mean_of_means_would_differ(task: str) -> None:
    """The control: each part divided by its own weight, then the mean of the parts."""
    whole = gradients(
        engine_for(task, dtype=torch.float64, grad_clip=1e9), steps_for(task, ROWS, dtype=torch.float64)[0]
    )
    engine = engine_for(task, dtype=torch.float64)
    micros = [m for m in steps_for(task, 4, dtype=torch.float64)[0] if OBJECTIVES[task].weight(m)]
    total = 0.0
    for batch in micros:
        loss = OBJECTIVES[task].loss(engine.model, batch) / OBJECTIVES[task].weight(batch) / len(micros)
        loss.backward()
        total += float(loss.detach())
    means = {name: p.grad for name, p in engine.model.named_parameters() if p.grad is not None}
    assert apart(means | {"loss": torch.tensor(total)}, whole) > 1e-3


def test_a_step_whose_targets_all_do_not_count_moves_nothing_far() -> None:
    engine = engine_for("lm")
    batch = Rows("lm").batch([0, 1])
    batch.targets.fill_(-100)
    step_result = engine.step(0, [batch])
    assert engine.finite(step_result) and float(step_result.loss) == 0.0


# ---------------------------------------------------------------- all positions at once


def test_two_passes_that_agree_cost_no_more_than_one() -> None:
    batch = Rows("translate").batch(range(ROWS))
    once, twice = Translate(), Translate(consistency=5.0)

    def losses(dropout: float, *, training: bool) -> list[float]:
        network = NETS["translate"](dropout).build(seed=1).train(training)
        torch.manual_seed(0)
        return [objective.loss(network, batch).item() for objective in (once, twice)]

    assert losses(0.0, training=True) == pytest.approx(losses(0.0, training=True)[:1] * 2, rel=1e-5)
    assert losses(0.4, training=False) == pytest.approx(losses(0.4, training=False)[:1] * 2, rel=1e-6)
    one, two = losses(0.4, training=True)  # control: two draws of dropout disagree, and that is charged
    assert two > 1.05 * one


@pytest.mark.parametrize("causal", [True, False])
def test_one_masked_pass_is_every_next_token_by_itself(causal: bool) -> None:
    """Loss and gradients of T positions at once are the sum of T passes, each over the tokens before only."""
    batch = Rows("lm").batch([0, 1, 2, 3])
    length = batch.inputs[0].shape[1]

    def summed(parts: list[Batch]) -> dict[str, Tensor]:
        network = net(Words(vocab=VOCAB), LM(), causal=causal).build(seed=1, dtype=torch.float64)
        losses = [Causal().loss(network, part) for part in parts]
        torch.stack(losses).sum().backward()
        found = {name: p.grad for name, p in network.named_parameters() if p.grad is not None}
        return found | {"loss": torch.stack(losses).sum().detach()}

    alone = []
    for at in range(length):
        targets = torch.full((4, at + 1), -100)
        targets[:, at] = batch.targets[:, at]
        alone.append(Batch((batch.inputs[0][:, : at + 1],), targets, batch.rows))
    off = apart(summed([batch]), summed(alone))
    assert off < 1e-12 if causal else off > 1e-3  # without the mask the law must fail


# ---------------------------------------------------------------- same bits, order, loader


def trained(engine: TrainingEngine, steps: Steps, first: int, last: int) -> list[tuple[float, float, float]]:
    moments = [engine.step(step, steps[step]) for step in range(first, last)]
    return [(float(m.loss), float(m.norm), m.lr) for m in moments]


def state_of(engine: TrainingEngine) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in (engine.weights() | engine.memory()).items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_same_seed_same_bits() -> None:
    runs = []
    for seed in (0, 0, 1):
        torch.manual_seed(99 + len(runs))  # what went on before does not matter
        engine = engine_for("tag", dropout=0.2, seed=seed)
        runs.append((trained(engine, steps_for("tag", 4, batch=12), 0, 6), state_of(engine)))
    assert runs[0][0] == runs[1][0] and same(runs[0][1], runs[1][1])
    assert runs[0][0] != runs[2][0]  # the seed alone makes other dropout


@given(count=st.integers(1, 90), batch=st.integers(1, 40), seed=st.integers(0, 9), epoch=st.integers(0, 3),
       ragged=st.booleans(), rest=st.booleans())  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_every_row_once_an_epoch(count: int, batch: int, seed: int, epoch: int, ragged: bool, rest: bool) -> None:
    lengths = np.random.default_rng(count).integers(1, 50, count) if ragged else None
    order = Order(count, min(batch, count), seed, lengths, keep_rest=rest)
    seen = [order.at(epoch * order.steps + step) for step in range(order.steps)]
    rows = np.concatenate([found for found, _ in seen])
    assert len(set(rows.tolist())) == len(rows) and (len(rows) == count or not rest)
    assert count - len(rows) < min(batch, count)
    assert all(draw == Draw(seed, epoch) for _, draw in seen)
    # Any step by itself, asked of a new order, is the same: nothing is remembered.
    again = Order(count, min(batch, count), seed, lengths, keep_rest=rest)
    last = epoch * order.steps + order.steps - 1
    assert again.at(last)[0].tolist() == seen[-1][0].tolist()


def test_epochs_and_seeds_differ_and_like_lengths_meet() -> None:
    lengths = np.arange(1000) % 50
    orders = [Order(1000, 20, seed, lengths) for seed in (0, 1)]
    epochs = [orders[0].epoch(0).tolist(), orders[0].epoch(1).tolist(), orders[1].epoch(0).tolist()]
    assert len({tuple(epoch) for epoch in epochs}) == 3
    spread = [np.ptp(lengths[orders[0].at(step)[0]]) for step in range(50)]
    plain = [np.ptp(lengths[Order(1000, 20, 0).at(step)[0]]) for step in range(50)]
    assert np.mean(spread) < np.mean(plain) / 10


def listed(batches: list[list[Batch]]) -> list[Any]:
    return [[(b.rows.tolist(), b.targets.tolist(), b.inputs[0].tolist()) for b in micros] for micros in batches]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_workers_change_nothing() -> None:
    steps = steps_for("tag", 5, batch=12)
    alone = listed(list(make_batches(steps, 2, 9, workers=0)))
    assert len(alone) == 7
    for workers in (1, 2):
        assert listed(list(make_batches(steps, 2, 9, workers=workers))) == alone
    assert listed(list(make_batches(steps, 5, 9, workers=2))) == alone[3:]


class Counting(Steps):
    """The control: rows by a counter of one's own, as an iterator would, in place of the step's number."""

    count: int = 0

    def __getitem__(self, step: int) -> list[Batch]:
        self.count += 1
        return super().__getitem__(self.count)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_an_order_that_remembers_would_depend_on_workers() -> None:
    made = [Counting(steps.examples, steps.order, steps.objective, steps.micro)
            for steps in (steps_for("tag", 5, batch=12), steps_for("tag", 5, batch=12))]  # fmt: skip
    alone = listed(list(make_batches(made[0], 0, 6, workers=0)))
    assert listed(list(make_batches(made[1], 0, 6, workers=2))) != alone


def test_seeds_of_places_do_not_meet() -> None:
    seeds = {seed_of(a, b, c, d) for a in range(4) for b in range(40) for c in range(4) for d in range(2)}
    assert len(seeds) == 4 * 40 * 4 * 2 and all(0 <= seed < 2**63 for seed in seeds)
    assert seed_of(0, 1) != seed_of(1, 0) and seed_of(1, 2, 3) == 7702586659592502839


# ---------------------------------------------------------------- saved and put back

HALVES = {
    "adamw": {}, "layers": {"optimizer": AdamW(layer_lr_decay=0.5)}, "muon": {"optimizer": Muon()}, "ema": {"ema": 0.9},
    "bf16": {"precision": "bf16"}, "fp16": {"precision": "fp16"},
}  # fmt: skip


@pytest.mark.parametrize("kind", HALVES)
def test_put_back_it_goes_on_to_the_bit(kind: str, tmp_path: Path) -> None:
    """Ten steps are five, a file, and five more; without one of the saved things they are not."""
    steps = steps_for("lm", 6, batch=12)
    whole = engine_for("lm", dropout=0.1, **HALVES[kind])
    figures = trained(whole, steps, 0, 10)
    half = engine_for("lm", dropout=0.1, **HALVES[kind])
    assert trained(half, steps, 0, 5) == figures[:5]
    tensors.write(tmp_path / "w.safetensors", half.weights())
    tensors.write(tmp_path / "m.safetensors", half.memory())
    weights, memory = (
        {name: entry.read() for name, entry in tensors.read_header(tmp_path / f"{file}.safetensors").items()}
        for file in "wm"
    )
    rest = engine_for("lm", dropout=0.1, **HALVES[kind])
    rest.load(weights, memory, half.state())
    assert trained(rest, steps, 5, 10) == figures[5:]
    assert same(state_of(rest), state_of(whole)) and rest.state() == whole.state()
    forgot = next(name for name in memory if ".momentum" in name or ".exp_avg." in name)
    without = engine_for("lm", dropout=0.1, **HALVES[kind])
    without.load(weights, {**memory, forgot: torch.zeros_like(memory[forgot])}, half.state())
    assert trained(without, steps, 5, 10) != figures[5:]


def test_a_tensor_of_nobody_is_refused() -> None:
    engine = engine_for("lm")
    trained(engine, steps_for("lm", 12, batch=12), 0, 1)
    saved = state_tensors(engine.optimizers, engine.names)
    assert all(name.startswith("opt.") for name in saved)
    restore(engine.optimizers, engine.names, saved)
    with pytest.raises(UserError, match="opt.exp_avg.ghost belongs to no parameter"):
        restore(engine.optimizers, engine.names, saved | {"opt.exp_avg.ghost": torch.zeros(1)})


def test_running_mean_of_the_weights() -> None:
    """mean + (1 - d) (weights - mean), with d from (1 + k) / (10 + k) up to the setting."""
    engine = engine_for("classify", ema=0.4)
    steps = steps_for("classify", 12, batch=12)
    mean = {name: p.detach().double() for name, p in engine.model.named_parameters()}
    for step in range(8):
        engine.step(step, steps[step])
        decay = min(0.4, (2 + step) / (11 + step))
        for name, p in engine.model.named_parameters():
            mean[name] += (1 - decay) * (p.detach().double() - mean[name])
    for name, value in engine.weights().items():
        assert torch.allclose(value.double(), mean[name], atol=1e-6)
    raw = {name: p.detach().clone() for name, p in engine.model.named_parameters()}
    with engine.evaluating() as model:
        assert all(torch.equal(p, engine.weights()[name]) for name, p in model.named_parameters())
        assert not model.training
    assert all(torch.equal(p, raw[name]) for name, p in engine.model.named_parameters())


def test_mean_of_checkpoints(tmp_path: Path) -> None:
    values = [torch.tensor([1.0, 2.0]), torch.tensor([4.0, 2.0]), torch.tensor([1.0, 5.0])]
    paths = []
    for step, value in enumerate(values):
        writers: list[store.Writer] = [
            ("weights", lambda folder, value=value: tensors.write(folder / "model.safetensors", {"a": value}))
        ]
        paths.append(store.commit(tmp_path, store.checkpoint_name(step), writers, {"step": step}))
    mean = mean_of(paths, torch.device("cpu"))["a"]
    assert mean.tolist() == [2.0, 3.0] and mean.dtype == torch.float32


# ---------------------------------------------------------------- rates


@pytest.mark.parametrize(("schedule", "known"), [
    (Constant(warmup=4), {0: 0.2, 3: 0.8, 4: 1.0, 99: 1.0}),
    (Cosine(warmup=0), {0: 0.5 * (1 + math.cos(math.pi * 0.005)), 49: 0.5 * (1 + math.cos(math.pi * 0.495)),
                        99: 0.5 * (1 + math.cos(math.pi * 0.995))}),
    (Cosine(warmup=0.1, floor=0.1), {4: 5 / 11, 10: 0.1 + 0.45 * (1 + math.cos(math.pi * 0.5 / 90)),
                                     99: 0.1 + 0.45 * (1 + math.cos(math.pi * 89.5 / 90))}),
    (Linear(warmup=0), {0: 0.995, 50: 0.495, 99: 0.005}),
    (Linear(warmup=10, floor=0.5), {0: 1 / 11, 10: 1 - 0.5 * 0.5 / 90, 99: 1 - 0.5 * 89.5 / 90}),
    (InverseSqrt(warmup=25), {0: 1 / 26, 24: 25 / 26, 25: math.sqrt(25 / 26), 99: 0.5}),
    (WSD(warmup=0.1, decay=0.2), {5: 6 / 11, 10: 1.0, 79: 1.0, 80: 0.975, 99: 0.025}),
])  # fmt: skip
def test_schedules(schedule: Schedule, known: dict[int, float]) -> None:
    for step, factor in known.items():
        assert schedule.factor(step, 100) == pytest.approx(factor, abs=1e-12)
    for total in (1, 2, 7, 100):
        factors = [schedule.factor(step, total) for step in range(total)]
        assert all(0 < factor <= 1 for factor in factors)
        assert [schedule.factor(step, total) for step in reversed(range(total))] == factors[::-1]  # nothing remembered


def test_what_decays_and_how_fast() -> None:
    network = NETS["translate"](0.0).build(device="meta")
    named = dict(network.named_parameters())
    groups = AdamW(lr=0.1, weight_decay=0.3).build(network)[0].param_groups
    decayed = {id(p) for group in groups if group["weight_decay"] for p in group["params"]}
    still = {name for name, p in named.items() if id(p) not in decayed}
    assert sum(len(group["params"]) for group in groups) == len(named)
    assert {group["weight_decay"] for group in groups} == {0.3, 0.0}
    assert all(named[name].dim() == 1 or "embed" in name for name in still)
    assert any("embed" in name for name in still) and any(".blocks." in name for name in still)
    slow = AdamW(lr=1.0, layer_lr_decay=0.5).build(NETS["classify"](0.0).build(device="meta"))[0].param_groups
    assert {group["full"] for group in slow} == {1.0, 0.5, 0.25, 0.125}  # head, second block, first block, table


@pytest.mark.parametrize("optimizer", [AdamW(lr=3e-3), Muon(lr=0.02), Muon(lr=0.003)])
def test_optimizers_learn(optimizer: Optimizer) -> None:
    engine = engine_for("tag", optimizer=optimizer, schedule=Constant(warmup=0), total=40)
    kinds = {type(part).__name__ for part in engine.optimizers}
    assert kinds == ({"AdamW"} if isinstance(optimizer, AdamW) else {"BatchedMuon", "AdamW"})
    losses = [loss for loss, _, _ in trained(engine, steps_for("tag", ROWS), 0, 40)]
    assert losses[-1] < 0.6 * losses[0]


def test_clipping_limits_a_step() -> None:
    figures = []
    for clip in (1e9, 1e-3):
        engine = engine_for("lm", grad_clip=clip, optimizer=AdamW(lr=1e-3, eps=1.0, weight_decay=0.0))
        before = [p.detach().clone() for p in engine.parameters]
        engine.step(0, steps_for("lm", ROWS)[0])
        figures.append(sum(float((p.detach() - b).norm()) for p, b in zip(engine.parameters, before, strict=True)))
    assert figures[1] < figures[0] / 10


def test_no_parameter_is_forgotten() -> None:
    for optimizer in (AdamW(), Muon()):
        network: nn.Module = NETS["lm"](0.0).build(device="meta")
        held = [id(p) for part in optimizer.build(network) for group in part.param_groups for p in group["params"]]
        assert sorted(held) == sorted(id(p) for p in network.parameters())


@pytest.mark.parametrize("lr", [0.02, 0.003])
def test_batched_muon_is_torchs_rule(lr: float) -> None:
    """Tall, wide and square matrices, several of one shape; torch's own takes its products in bf16, hence 2 %."""
    draw = torch.Generator().manual_seed(0)
    starts = [torch.randn(shape, generator=draw) for shape in ((24, 16), (24, 16), (16, 40), (16, 16), (16, 40))]
    ours, theirs = ([torch.nn.Parameter(start.clone()) for start in starts] for _ in range(2))
    mine = BatchedMuon([{"params": ours}], lr=lr, weight_decay=0.1, momentum=0.9, match_adamw=lr < 0.01)
    kind = "match_rms_adamw" if lr < 0.01 else "original"
    reference = torch.optim.Muon(theirs, lr=lr, weight_decay=0.1, momentum=0.9, adjust_lr_fn=kind)
    for _ in range(4):
        for a, b in zip(ours, theirs, strict=True):
            a.grad = b.grad = torch.randn(a.shape, generator=draw)
        mine.step()
        reference.step()
    for start, a, b in zip(starts, ours, theirs, strict=True):
        assert float((a - b).detach().norm() / (b - start).detach().norm()) < 2e-2
        assert torch.allclose(mine.state[a]["momentum_buffer"], reference.state[b]["momentum_buffer"])
    mine.found_inf = torch.ones(())
    before = [p.detach().clone() for p in ours]
    mine.step()
    assert all(torch.equal(a, b) for a, b in zip(before, ours, strict=True))

"""What learns on a GPU: frozen weights and their masters keep their bits; another set of layers is recorded anew."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from anyformer.objectives import Causal
from anyformer.training.distributed.parallel import choose_trained
from anyformer.training.duration import Plan
from anyformer.training.lora import LoRA
from anyformer.training.optim import AdamW, Muon, Optimizer
from anyformer.training.settings import Training
from anyformer.training.step import TrainingEngine
from tests.device.test_training_step import CUDA, batch_of, decoder

pytestmark = [pytest.mark.device, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
STEPS, EVERY = 24, 8  # steps, and steps of one set of layers: more than the warm-up of a recording


def engine_for(**training: Any) -> TrainingEngine:
    chosen = {"steps": STEPS, "batch_size": 8, "micro_batch_size": 8, "precision": "bf16", "compile": False} | training
    settings = Training(**chosen)
    model = decoder().build(seed=1, device=CUDA)
    choose_trained(model, settings)
    return TrainingEngine(model, Causal(), settings, Plan(STEPS))


def run(engine: TrainingEngine, *, unfreeze: bool = True) -> list[float]:
    losses = []
    for step in range(STEPS):
        if unfreeze:
            engine.train_last(1 + step // EVERY)
        losses.append(float(engine.step(step, [batch_of(step)]).loss))
    return losses


def copies(engine: TrainingEngine) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in engine.single.items()}


@pytest.mark.parametrize("optimizer", [AdamW(weight_decay=0.5), Muon(weight_decay=0.5)], ids=["AdamW", "Muon"])
@pytest.mark.parametrize("recorded", [True, False])
def test_layers_keep_their_bits_until_they_learn(optimizer: Optimizer, recorded: bool) -> None:
    engine = engine_for(optimizer=optimizer, cuda_graph=recorded, ema=0.9)
    before, at_first = copies(engine), {}
    for step in range(STEPS):
        changed = engine.train_last(1 + step // EVERY)
        assert changed is (step % EVERY == 0)
        engine.step(step, [batch_of(step)])
        if step == EVERY - 1:
            at_first = copies(engine)
            assert not recorded or (engine.graph is not None and engine.graph.graph is not None)
    learned = {name for name in before if not torch.equal(before[name], at_first[name])}
    assert learned == set(engine.layers[-1].parameters)  # the other layers, their masters included, are as they were
    used = engine.weights()
    frozen = {name for layer in engine.layers[: -STEPS // EVERY] for name in layer.parameters}
    assert all(torch.equal(before[name], used[name]) for name in frozen)  # and so is their running mean
    control = engine_for(optimizer=optimizer, cuda_graph=recorded)
    start = copies(control)
    run(control, unfreeze=False)
    assert all(not torch.equal(start[name], value) for name, value in copies(control).items())


def test_a_recorded_step_gives_what_a_plain_one_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    try:
        one, other = (run(engine_for(cuda_graph=recorded)) for recorded in (True, False))
    finally:
        torch.use_deterministic_algorithms(False)
    assert one == pytest.approx(other, rel=2e-3) and one[-1] < one[0]


@pytest.mark.parametrize("recorded", [True, False])
def test_adapters_learn_and_the_weights_below_them_do_not(recorded: bool) -> None:
    engine = engine_for(lora=LoRA(rank=4, dropout=0.1), cuda_graph=recorded, optimizer=AdamW(lr=1e-2))
    before = copies(engine)
    losses = run(engine, unfreeze=False)
    after = copies(engine)
    assert {name for name in before if not torch.equal(before[name], after[name])} == set(engine.adapters)
    assert sum(losses[-4:]) < sum(losses[:4])
    remembered = sum(len(optimizer.state) for optimizer in engine.optimizers)
    assert remembered == len(engine.adapters)
    inputs = batch_of(0).inputs[0].to(CUDA)
    with engine.evaluating() as model, torch.no_grad():
        merged = model(inputs).logits
    engine.release()
    with torch.no_grad():
        assert (engine.model.eval()(inputs).logits - merged).abs().max() < 1e-2  # single, but products may use TF32


def test_lora_needs_less_memory() -> None:
    def peak(**training: Any) -> int:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        engine = engine_for(cuda_graph=False, **training)
        for step in range(3):
            engine.step(step, [batch_of(step)])
        held = sum(
            t.numel() * t.element_size() for o in engine.optimizers for s in o.state.values() for t in s.values()
        )
        del engine
        assert torch.cuda.max_memory_allocated() >= before
        return held

    assert peak(lora=LoRA(rank=4)) < 0.3 * peak()

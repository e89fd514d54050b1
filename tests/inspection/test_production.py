"""Looking leaves the model that works as it was: weights, hooks, compiled code, memory, every bit of its answers."""

from __future__ import annotations

import copy
import gc
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import anyformer
from anyformer.inspection.capture import Capture, look
from anyformer.inspection.shadow import shadow
from tests.inspection import models
from tests.laws.nets import tokens

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_state_dict_hooks",
         "_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs")  # fmt: skip


def use(capture: Capture) -> None:
    """Everything that a look does with its shadow."""
    for site in capture.sites:
        capture.weights(site.index)
    assert capture.trust.ok
    capture.lens()
    capture.heads()
    capture.rollout()
    capture.prediction()
    capture.rerun()


def storages(model: nn.Module) -> dict[str, tuple[int, int]]:
    """Where each tensor lies, and which version it is of: written in place, it would be another."""
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: (tensor.data_ptr(), tensor._version) for name, tensor in named}


def hooked(model: nn.Module) -> list[str]:
    return [path for path, module in model.named_modules() if any(getattr(module, name) for name in HOOKS)]


@pytest.mark.parametrize("kind", models.KINDS)
def test_a_look_changes_nothing_of_the_model(kind: str) -> None:
    predictor = models.predictor(kind)
    model = predictor.model
    training = {path: module.training for path, module in model.named_modules()}
    before, kept = storages(model), copy.deepcopy(model.state_dict())
    given = look(predictor, models.inputs(kind)).given
    model.eval()
    answer = model(*given.args, **given.options).logits
    for path, module in model.named_modules():
        module.training = training[path]

    capture = look(predictor, models.inputs(kind))
    assert storages(capture.model) == before  # every weight is shared
    assert not hooked(model) and not hooked(capture.model)
    use(capture)
    capture.html()
    assert storages(model) == before and not hooked(model) and not hooked(capture.model)
    assert {path: module.training for path, module in model.named_modules()} == training
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, kept[name]), name
    assert all(parameter.grad is None for parameter in model.parameters())
    model.eval()
    assert torch.equal(model(*given.args, **given.options).logits, answer)


def test_control_a_hook_or_a_changed_weight_would_be_seen() -> None:
    model = models.gpt().model
    before = storages(model)
    handle = model.stack.blocks[1].mixer.register_forward_hook(lambda *given: None)
    assert hooked(model) == ["stack.blocks.1.mixer"]
    handle.remove()
    with torch.no_grad():
        next(model.parameters()).mul_(1.0)
    assert storages(model) != before


def test_a_model_in_training_goes_on_as_if_nobody_looked() -> None:
    """Dropout on, gradients half way, an optimizer: the next steps are the same to the last bit."""

    def steps(looking: bool) -> list[Tensor]:
        torch.manual_seed(0)
        model = models.gpt().model.train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        ids = tokens(2, 12)
        losses = []
        for step in range(4):
            loss = nn.functional.cross_entropy(model(ids).logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
            loss.backward()
            if looking and step == 1:
                state = torch.random.get_rng_state()
                look(model, ids[:1]).weights(0)
                assert torch.equal(torch.random.get_rng_state(), state) and model.training
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        return [*losses, *(p.detach().clone() for p in model.parameters())]

    for plain, looked in zip(steps(False), steps(True), strict=True):
        assert torch.equal(plain, looked)


def seconds_of(run: Callable[[], object], times: int = 15) -> float:
    """The fastest of some passes: what else runs here only slows."""
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        run()
        taken.append(time.perf_counter() - began)
    return min(taken)


@pytest.mark.alone
@torch.no_grad()
def test_a_model_that_was_looked_at_is_as_fast_as_before() -> None:
    """Within noise; a model whose maps are made in the pass, the eager way of other viewers, is beyond it."""
    model, ids = models.gpt(depth=4, heads=8, width=128).model.eval(), tokens(4, 256) % models.words().size
    model(ids)
    before = seconds_of(lambda: model(ids))
    capture = look(model, ids[:1])
    use(capture)
    after = seconds_of(lambda: model(ids))
    again = seconds_of(lambda: model(ids))
    assert min(after, again) < 1.1 * before
    eager = seconds_of(lambda: anyformer.attention_maps(model, ids), times=3)
    assert eager > 1.3 * before  # control


COMPILED = """
import torch
from torch._dynamo.utils import counters
from anyformer import LM, Attention, Block, Model, Rope, Stack, Tokens
from anyformer.inspection.capture import look

def graphs():
    return counters["stats"]["unique_graphs"]

def net():
    block = Block(mixer=Attention(heads=2), relative=Rope())
    stack = Stack(width=16, depth=1, causal=True, block=block)
    return Model(embed=Tokens(vocab=32), stack=stack, head=LM()).build(seed=0).eval().requires_grad_(False)

def in_place(model):
    model.compile(backend="eager")
    return model

ids = torch.arange(12)[None]
for wrap in (lambda model: torch.compile(model, backend="eager"), in_place):
    torch._dynamo.reset()
    compiled, start = wrap(net()), graphs()
    before = compiled(ids).logits
    made = graphs()
    assert made > start, "nothing was compiled"
    capture = look(compiled, ids)
    assert type(capture.model).__name__ == "ModelModule" and len(capture.sites) == 1
    capture.weights(0)
    assert capture.trust.ok
    capture.rerun()
    assert graphs() == made, "looking compiled something"
    assert torch.equal(compiled(ids).logits, before)
    assert graphs() == made, "the model was compiled again"
    compiled(ids.repeat(3, 1))  # control: another shape is compiled anew, and seen
    assert graphs() > made
print("fine")
"""


def test_a_compiled_model_keeps_its_graphs() -> None:
    """Both ways to compile a model: wrapped, and in place."""
    made = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, timeout=300)
    assert made.returncode == 0, made.stderr[-2000:]
    assert made.stdout.strip() == "fine"


def living_bytes() -> int:
    """Bytes of all tensors that are reachable, each storage once."""
    gc.collect()
    found: dict[int, int] = {}
    for thing in gc.get_objects():
        if issubclass(type(thing), Tensor) and thing.device.type == "cpu":  # `isinstance` would wake lazy modules
            storage = thing.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
    return sum(found.values())


@pytest.mark.alone
@pytest.mark.parametrize("kind", ["gpt", "t5", "vit"])
def test_memory_is_given_back_with_the_capture(kind: str) -> None:
    predictor, given = models.predictor(kind), models.inputs(kind)
    use(look(predictor, given))  # what is kept for good, such as tables of a tokenizer, is there now
    before = living_bytes()
    capture: Any = look(predictor, given)
    use(capture)
    held = living_bytes()
    del capture
    assert living_bytes() <= before
    assert held > before + 10_000  # control: while it lives it is seen


@pytest.mark.alone
def test_a_shadow_takes_no_room_for_weights() -> None:
    model = models.gpt(depth=4, width=512, heads=8).model
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    before = living_bytes()
    copied = shadow(model)
    assert living_bytes() - before < size / 1000
    own = copy.deepcopy(model)
    assert living_bytes() - before >= size  # control: a copy does
    assert next(copied.parameters()) is next(model.parameters()) and own is not model

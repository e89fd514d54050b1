"""Compiled equals eager, at three lengths and two batch sizes, without compiling for ever."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from anyformer import Embed, Feed, Head, Mixer, Norm, Position, Relative, Seq2Seq, Spec, preset, replace_in
from anyformer.core.block import BlockModule
from tests.laws.examples import gathered
from tests.laws.nets import around, gap, inputs, looking, model, tokens
from tests.laws.parts import examples, named, of_images, ours

# Torch's own compiler warns of itself; what it computes is compared.
pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
# Batch and length; none of them is the size of something else, which the compiler would take for the same number.
SHAPES = [(5, 11), (5, 13), (7, 19), (7, 11)]
MOST = 4  # graphs of one module: the first shape, a length that varies, a batch that varies, both


def one_each(*slots: type[Spec]) -> list[Any]:
    """One example of every part: the compiler sees the same code in the others."""
    found = [next(iter(examples(part).items())) for slot in slots for part in ours(slot) if examples(part)]
    return [pytest.param(spec, id=name) for name, spec in found if name not in gathered("APART")]


def compiles(part: Spec) -> bool:
    """Torch's own recurrent cells are no graph; the part says so."""
    return not isinstance(part, Mixer) or part.compiles


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


def graphs() -> int:
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def compare(
    spec: Any, given: Any, parts: Any, backend: str, bound: float, *, dynamic: bool | None, most: int,
    backward: bool = True,
) -> None:  # fmt: skip
    """Forward and backward of two equal models, one of which has some parts compiled, over all shapes."""
    eager, compiled = spec.build(seed=0), spec.build(seed=0)
    for module in parts(compiled):
        module.compile(backend=backend, dynamic=dynamic)
    for batch, length in SHAPES:
        outs = []
        for net in (eager, compiled):
            net.zero_grad()
            args, options = given(batch, length)
            with torch.set_grad_enabled(backward):
                out = net(*args, **options)
            answer = out.hidden if out.logits is None else out.logits
            if backward:
                answers = (answer, out.boxes, out.patches, out.pooled, out.transitions)
                sum(x.square().mean() for x in answers if x is not None).backward()
            outs.append((answer, [p.grad for p in net.parameters()]))
        assert gap(outs[0][0], outs[1][0]) < bound
        for a, b in zip(outs[0][1], outs[1][1], strict=True):
            assert (a is None) == (b is None) and (a is None or gap(a, b) < bound)
    assert 1 <= graphs() <= most, f"{graphs()} graphs for {len(SHAPES)} shapes"
    assert not torch._dynamo.utils.counters["graph_break"], dict(torch._dynamo.utils.counters["graph_break"])


class Inside(nn.Module):
    """Torch does not compile its own modules by themselves, only what calls them."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * 1.0


def blocks(net: nn.Module) -> list[nn.Module]:
    """Block by block, as training compiles."""
    return [module for module in net.modules() if isinstance(module, BlockModule)]


@pytest.mark.parametrize("part", [case for case in one_each(Norm, Relative, Mixer, Feed) if compiles(case.values[0])])
def test_a_compiled_part_equals_the_eager_one(part: Spec) -> None:
    """The module of the part alone, so that each compiles once and little; whole blocks are further down."""
    slot = next(slot for slot in (Norm, Relative, Mixer, Feed) if isinstance(part, slot))

    def given(batch: int, length: int) -> Any:
        extra = looking(part, batch, torch.float32) if isinstance(part, Mixer) else {}
        return inputs(spec.embed, batch, length, dtype=torch.float32), extra

    def module_of(net: Any) -> list[nn.Module]:
        (block,) = net.stack.blocks
        if isinstance(part, Norm):
            block.around_mixer.before = Inside(block.around_mixer.before)
            return [block.around_mixer.before]
        return [block.feed if isinstance(part, Feed) else block.mixer]  # relative positions act inside the mixer

    spec = (
        around(part, depth=1, head=None) if isinstance(part, Mixer) else model(depth=1, **{slot.__name__.lower(): part})
    )
    compare(spec, given, module_of, "aot_eager", 1e-5, dynamic=True, most=2)


@pytest.mark.parametrize("part", one_each(Position, Embed, Head))
def test_a_compiled_embedding_or_head_equals_the_eager_one(part: Spec) -> None:
    if of_images(part):
        part = named(Embed)["patches"].replace(position=part)
    slot = next(slot for slot in (Position, Embed, Head) if isinstance(part, slot))
    spec = model(depth=1, causal=False, **{slot.__name__.lower(): part})

    def given(batch: int, length: int) -> Any:
        return inputs(spec.embed, batch, length, dtype=torch.float32), {}

    def ends(net: Any) -> list[nn.Module]:
        return [net.head if isinstance(part, Head) else net.embed]

    # A fixed number of patches or columns may be known to the compiler: then a new batch size is a new graph.
    compare(spec, given, ends, "aot_eager", 1e-5, dynamic=True, most=2)


def test_without_a_word_about_shapes_few_graphs_are_enough() -> None:
    """Torch's default: the first shape as it is, then whatever varied is a variable."""
    compare(model(depth=1), lambda b, t: ((tokens(b, t),), {}), blocks, "aot_eager", 1e-5, dynamic=None, most=MOST)


WHOLE = ["gpt2-tiny", "bert-base-tiny", "t5-small-tiny", "vit-b16-tiny"]


@pytest.mark.parametrize("name", WHOLE)
def test_whole_models_equal_themselves_under_inductor(name: str) -> None:
    spec = preset(name)
    sides = ("encoder.", "decoder.") if isinstance(spec, Seq2Seq) else ("",)
    spec = replace_in(spec, {f"{side}stack.depth": 1 for side in sides})  # every layer would be the same code again

    def given(batch: int, length: int) -> Any:
        if isinstance(spec, Seq2Seq):
            return (tokens(batch, length, vocab=512), tokens(batch, length, seed=1, vocab=512)), {}
        return inputs(spec.embed, batch, length, dtype=torch.float32), {}

    # One of them backward too: C++ for both ways of all four would cost a minute and show the same.
    settings = {"dynamic": True, "most": 2 * len(sides), "backward": name == "gpt2-tiny"}
    compare(spec, given, blocks, "inductor", 1e-4, **settings)


def test_a_model_that_compiles_for_ever_would_be_noticed() -> None:
    """The control: every new length is a new graph."""
    double = torch.compile(lambda x: x * 2 + 1, backend="aot_eager", dynamic=False)
    for length in range(3, 9):
        double(torch.ones(2, length))
    assert graphs() > MOST

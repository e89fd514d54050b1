"""The loss as one operation on a GPU: the reference's numbers, the memory of a chunk, and one node to the compiler."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from anyformer.core import loss as reference
from anyformer.core.loss import linear_cross_entropy

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture(autouse=True)
def enabled() -> None:
    from anyformer.kernels import linear_loss

    assert linear_loss.enable(torch.device("cuda"))


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("vocab", [7, 4096, 50257])
def test_it_is_the_plain_loss(vocab: int, smoothing: float, with_bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from anyformer.kernels import linear_loss

    monkeypatch.setattr(linear_loss, "CHUNK", 37 * vocab)  # several chunks, the last one short
    draw = torch.Generator("cuda").manual_seed(0)
    made = [torch.randn(shape, device="cuda", generator=draw) for shape in ((3, 40, 64), (vocab, 64), (vocab,))]
    targets = torch.randint(0, vocab, (3, 40), device="cuda", generator=draw)
    targets[0, ::3] = -100
    found = []
    for fused in (True, False):
        hidden, weight, bias = (x.clone().requires_grad_() for x in made)
        given = bias if with_bias else None
        if fused:
            loss = linear_cross_entropy(hidden, weight, targets, bias=given, smoothing=smoothing)
        else:
            logits = F.linear(hidden, weight, given).flatten(0, 1)
            loss = F.cross_entropy(logits, targets.flatten(), label_smoothing=smoothing)
        (1.7 * loss).backward()
        found.append([loss.detach(), hidden.grad, weight.grad, *([bias.grad] if with_bias else [])])
    for ours, theirs in zip(*found, strict=True):
        assert float((ours - theirs).norm() / theirs.norm()) < 1e-4
    assert (found[0][1][0, ::3] == 0).all() and float(found[0][1].norm()) > 0


def test_memory_is_that_of_a_chunk_and_the_compiler_sees_one_operation() -> None:
    tokens, width, vocab = 8192, 256, 50304
    weight = torch.randn(vocab, width, device="cuda", requires_grad=True)
    hidden = torch.randn(tokens, width, device="cuda", requires_grad=True)
    targets = torch.randint(0, vocab, (tokens,), device="cuda")

    def loss(hidden: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return linear_cross_entropy(2 * hidden, weight, targets)

    explained = torch._dynamo.explain(loss)(hidden)
    assert explained.graph_break_count == 0 and explained.op_count < 12
    compiled = torch.compile(loss, fullgraph=True)
    for run in (loss, compiled):
        hidden.grad = weight.grad = None
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run(hidden).backward()
        held = torch.cuda.max_memory_allocated() - before
        assert held < tokens * vocab * 4 * 0.75  # the logits alone are 1.6 GB in single precision
    assert reference.fused is not None

"""What needs a GPU: every engine equals the reference there, forward and backward.

Without pytest on the machine: `PYTHONPATH=src:. python tests/device/test_cuda.py`.
"""

from __future__ import annotations

import itertools

import torch

import anyformer
from anyformer import Alibi, Attention, Block, Buckets, NoRelative, Rope, Shaw, checks, replace_in
from anyformer.core import attend as seam
from anyformer.core.attend import ENGINES, Scores, choose
from anyformer.core.context import lay_out

try:
    import pytest

    pytestmark = [
        pytest.mark.device,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    ]
except ModuleNotFoundError:  # the device machine may have no pytest
    pass

DEVICE = torch.device("cuda")


def described(case: str, batch: int, length: int, heads: int, dtype: torch.dtype) -> Scores:
    """A description with one feature each, and one with all."""
    generator = torch.Generator().manual_seed(0)
    mask = torch.ones(batch, length, dtype=torch.bool)
    mask[1, : length // 3] = False
    documents = torch.randint(0, 3, (batch, length), generator=generator).sort(1).values
    given = {
        "mask": mask.to(DEVICE) if case in ("padding", "all") else None,
        "documents": documents.to(DEVICE) if case in ("documents", "all") else None,
    }
    context = lay_out(batch, length, DEVICE, **given)
    relative = {"alibi": Alibi(), "all": Alibi(), "buckets": Buckets()}.get(case, NoRelative())
    module = relative.build(heads, 64, 64, True)
    tables = () if module is None else module.to(DEVICE)(context, dtype)
    window = length // 4 if case in ("window", "all") else None
    return Scores.among(
        context, length, scale=64**-0.5, causal=True, window=window, soft_cap=None, relative=relative, tables=tables
    )


CASES = ("causal", "alibi", "buckets", "window", "documents", "padding", "all")


def test_flex_and_sdpa_equal_the_reference_forward_and_backward() -> None:
    worst = {}
    for case, dtype, kv_heads in itertools.product(CASES, (torch.float32, torch.bfloat16), (8, 2)):
        torch.manual_seed(0)
        q = torch.randn(2, 8, 384, 64, device=DEVICE, dtype=dtype)
        k, v = (torch.randn(2, kv_heads, 384, 64, device=DEVICE, dtype=dtype) for _ in range(2))
        scores = described(case, 2, 384, 8, dtype)
        grad = torch.randn_like(q)
        results = {}
        engines = ("sdpa",) if dtype == torch.float32 else ("sdpa", "flex")
        for engine in ("reference", *engines):
            leaves = [x.clone().requires_grad_() for x in (q, k, v)]
            out = ENGINES[engine](*leaves, scores)
            out.backward(grad)
            results[engine] = [out.detach(), *(x.grad for x in leaves)]
        bound = (
            1e-4 if dtype == torch.float32 else 2e-2
        )  # FlexAttention, whose float32 is tf32, takes half precision only
        for engine in engines:
            for ours, right in zip(results[engine], results["reference"], strict=True):
                assert torch.isfinite(ours).all(), (case, dtype, engine)
                gap = ((ours - right).float().norm() / right.float().norm().clamp(min=1e-6)).item()
                worst[engine] = max(worst.get(engine, 0.0), gap)
                assert gap <= bound, (case, dtype, kv_heads, engine, gap)
    print("largest relative gaps", worst)


def test_a_query_that_sees_nothing_gives_zeros_on_every_backend() -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    for dtype, backend in itertools.product(
        (torch.float32, torch.bfloat16, torch.float16), (SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH)
    ):
        q, k, v = (torch.randn(2, 4, 64, 64, device=DEVICE, dtype=dtype, requires_grad=True) for _ in range(3))
        mask = torch.ones(2, 64, dtype=torch.bool, device=DEVICE)
        mask[1] = False
        context = lay_out(2, 64, DEVICE, mask=mask)
        scores = Scores.among(
            context, 64, scale=0.125, causal=True, window=None, soft_cap=None, relative=NoRelative(), tables=()
        )
        with sdpa_kernel(backend):
            out = ENGINES["sdpa"](q, k, v, scores)
        out.float().square().sum().backward()
        assert (out[1] == 0).all() and torch.isfinite(out).all()
        assert all(torch.isfinite(x.grad).all() for x in (q, k, v))


def test_the_laws_hold_on_the_device() -> None:
    small = replace_in(anyformer.preset("gpt2-tiny"), {"embed.position": None})
    for relative in (NoRelative(), Rope(), Alibi(), Buckets(), Shaw(4)):
        for mixer in (Attention(heads=4), Attention(heads=4, kv_heads=2, window=5)):
            spec = replace_in(small, {"stack.block": Block(mixer=mixer, relative=relative)})
            model = spec.build(seed=0, device=DEVICE)
            tokens = torch.randint(0, 512, (2, 16), device=DEVICE)
            assert checks.causal(model, tokens), checks.causal(model, tokens)  # exactly 0
            assert checks.cache(model, tokens), checks.cache(model, tokens)
            for side in ("left", "right"):
                assert checks.padding(model, tokens, side=side)


def test_a_long_biased_sequence_takes_flex_and_makes_no_square() -> None:
    length = 16384
    scores = described("alibi", 2, length, 8, torch.bfloat16)
    q, k, v = (torch.randn(2, 8, length, 64, device=DEVICE, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    assert choose(q, k, v, scores).engine == "flex"
    torch.cuda.reset_peak_memory_stats()
    seam.attend(q, k, v, scores).float().sum().backward()
    peak = torch.cuda.max_memory_allocated()
    assert peak < 2 * 8 * length * length, peak  # bytes: less than one byte a score


def test_masked_attention_has_finite_gradients_at_every_length() -> None:
    """Texts of different lengths in causal order, as a classifier is trained on: cuDNN's kernel once gave nan."""
    draw = torch.Generator(DEVICE).manual_seed(0)
    for channels, length in itertools.product((64, 96), (*range(8, 136, 8), 57, 131)):
        shape = (8, 4, length, channels)
        q, k, v = (torch.randn(shape, device=DEVICE, generator=draw).bfloat16().requires_grad_() for _ in range(3))
        ends = torch.randint(1, length + 1, (8, 1), device=DEVICE, generator=draw)
        context = lay_out(8, length, DEVICE, mask=torch.arange(length, device=DEVICE) < ends)
        scores = Scores.among(context, length, scale=channels**-0.5, causal=True, window=None, soft_cap=None,
                              relative=NoRelative(), tables=())  # fmt: skip
        seam.attend(q, k, v, scores).square().sum().backward()
        wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
        seam.reference(*wide, scores).square().sum().backward()
        for ours, exact in zip((q, k, v), wide, strict=True):
            assert ours.grad is not None and exact.grad is not None
            assert float((ours.grad - exact.grad).norm() / exact.grad.norm()) < 0.03, (channels, length)


if __name__ == "__main__":
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test()
            print("passed", name)

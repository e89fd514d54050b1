"""Every part on a GPU: the answers of the CPU, in half precision finite, decoded step by step, and trained there.

Needs a GPU; `PYTHONPATH=src:. python -m pytest tests/device`.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from anyformer import Embed, Feed, Head, Mixer, Norm, Relative
from anyformer.checks import answer_of
from tests.laws.nets import around, build, gap, inputs, looking, model, stepwise, tokens
from tests.laws.parts import every, mixers

pytestmark = [pytest.mark.device, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
CUDA = torch.device("cuda")


def with_part(part: Any) -> Any:
    if isinstance(part, Mixer):
        return around(part)
    slot = next(s for s in (Norm, Relative, Feed, Embed, Head) if isinstance(part, s))
    return model(**{slot.__name__.lower(): part}, causal=slot not in (Embed, Head))


def there(value: Any, dtype: torch.dtype) -> Any:
    """On the GPU, numbers in this precision."""
    if isinstance(value, torch.Tensor):
        return value.to(CUDA, dtype if value.is_floating_point() else None)
    return tuple(there(piece, dtype) for piece in value) if isinstance(value, tuple) else value


def distance(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """|found - wanted| / |wanted|: one outlier of many half-precision roundings does not decide."""
    return ((found.double().cpu() - wanted).norm() / wanted.norm()).item()


@pytest.fixture(autouse=True)
def full_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """cuDNN's convolutions would take tf32, which has ten bits."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.mark.parametrize("part", every(Norm, Relative, Mixer, Feed, Embed, Head))
def test_a_part_answers_as_on_the_cpu_and_learns(part: Any) -> None:
    spec = with_part(part)
    given = inputs(spec.embed, batch=2, length=8)
    extra = looking(part) if isinstance(part, Mixer) else {}
    for dtype, bound in ((torch.float64, 1e-9), (torch.float32, 1e-4), (torch.bfloat16, 2e-2)):
        moved = build(spec).to(CUDA, dtype)
        net = build(spec)  # float64 on the CPU, of the same weights: rounding them is not what is measured
        net.load_state_dict({name: value.cpu().double() for name, value in moved.state_dict().items()})
        wanted = answer_of(net(*given, **extra))
        options = {name: there(value, dtype) for name, value in extra.items()}
        got = answer_of(moved(*(there(piece, dtype) for piece in given), **options))
        assert got.isfinite().all()
        assert distance(got.detach(), wanted.detach()) < bound, dtype
        got.float().square().mean().backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in moved.parameters())


@pytest.mark.parametrize("mixer", mixers(causal=True))
@torch.no_grad()
def test_a_mixer_decodes_there(mixer: Mixer) -> None:
    net = build(around(mixer)).to(CUDA)
    given = tokens(3, 9).to(CUDA)
    extra = {name: value.to(CUDA) for name, value in looking(mixer, 3).items()}
    full = answer_of(net(given, **extra))
    for cuts in ([0, *range(1, 9)], [0, 5, 6, 7, 8]):
        assert gap(stepwise(net, given, cuts, net.state(3), **extra), full) < 1e-9
    mask = torch.ones(3, 9, dtype=torch.bool, device=CUDA)
    mask[0, :3] = False
    padded = answer_of(net(given, mask=mask, **extra))
    alone = answer_of(net(given[:1, 3:], **{name: value[:1] for name, value in extra.items()}))
    assert gap(padded[:1, 3:], alone) < 1e-9

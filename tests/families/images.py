"""What the image families add to the battery: cases of images, pooled vectors, hidden states layer by layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anyformer.checkpoints.folder import open_folder
from tests.families.parity import Case, make, save


def image_case(
    name: str, kind: type, config: Any, *, size: tuple[int, int] | None = None, interpolate: bool = False, seed: int = 0
) -> Case:
    """A case of three images; `size` is another size than the config's, which theirs must be told to interpolate."""
    sides = config.image_size if isinstance(config.image_size, list | tuple) else [config.image_size] * 2
    generator = torch.Generator().manual_seed(seed)
    shape = (3, config.num_channels, *(sides if size is None else size))
    pixels = torch.randn(shape, generator=generator, dtype=torch.float64)

    def theirs(dtype: torch.dtype) -> dict[str, Any]:
        return {"pixel_values": pixels.to(dtype)} | ({"interpolate_pos_encoding": True} if interpolate or size else {})

    return Case(name, kind, config, theirs, lambda dtype: ((pixels.to(dtype),), {}))


def pooled_of(out: Any) -> Tensor:
    """Their one vector a row, whatever it is called."""
    named = (getattr(out, name, None) for name in ("text_embeds", "image_embeds", "pooler_output"))
    return next(value for value in named if value is not None)


@torch.no_grad()
def check_pooled(case: Case, folder: Path) -> None:
    """The vector of a row agrees in float32 and float64."""
    for dtype, bound in ((torch.float32, 1e-5), (torch.float64, 1e-10)):
        theirs = make(case, dtype)
        ours = open_folder(save(theirs, folder / f"pooled {dtype}")).model
        given, options = case.ours(dtype)
        a, b = pooled_of(theirs(**case.theirs(dtype))), ours(*given, **options).pooled
        assert a.shape == b.shape
        assert (a - b).abs().max() <= bound * max(1.0, a.abs().max().item())


def watched(model: Any, given: tuple[Any, ...], options: dict[str, Any]) -> list[Tensor]:
    """What enters the first block and what leaves every block."""
    seen: list[Tensor] = []
    model.stack.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    for block in model.stack.blocks:
        block.register_forward_hook(lambda module, given, out: seen.append(out[0]))
    model.before_head(*given, **options)  # all tokens, also those that the head does not read
    return seen


@torch.no_grad()
def check_hidden_states(case: Case, folder: Path) -> None:
    """What enters the first layer and what leaves every layer agrees, on real tokens."""
    for dtype, bound in ((torch.float32, 1e-5), (torch.float64, 1e-10)):
        theirs = make(case, dtype)
        ours = open_folder(save(theirs, folder / f"hidden {dtype}")).model
        given, options = case.ours(dtype)
        seen = watched(ours, given, options)
        wanted = theirs(**case.theirs(dtype), output_hidden_states=True).hidden_states
        assert len(seen) == len(wanted) == len(ours.stack.blocks) + 1
        for a, b in zip(wanted, seen, strict=True):
            a, b = (a, b) if case.real is None else (a[case.real], b[case.real])
            assert (a - b).abs().max() <= bound * max(1.0, a.abs().max().item())

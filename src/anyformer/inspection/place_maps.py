"""Images for overlays, and attention over feature map positions: visual tokens (2006.03677), SAGAN (1805.08318)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from anyformer.embeds.frames import FramesModule
from anyformer.inspection.given import rescaled, to_rgb
from anyformer.nets.map_attention import MapAttention
from anyformer.nets.visual_transformer import VisualTransformerModule

if TYPE_CHECKING:
    from anyformer.inspection.capture import Capture


class PlaceWeights(NamedTuple):
    """Attention between all positions of a feature map."""

    weights: np.ndarray  # (N,N), rows sum to 1
    grid: tuple[int, int]


def token_maps(capture: Capture) -> list[np.ndarray] | None:
    """The spatial attention of each visual token, (L,rows,columns) per round; None for models without."""
    module = next((part for part in capture.model.modules() if isinstance(part, VisualTransformerModule)), None)
    if module is None:
        return None
    key = ("token maps", capture.row)
    if key not in capture.kept:
        rounds = module.token_maps(capture.given.args[0])
        capture.keep(key, [maps[min(capture.row, len(maps) - 1)].float().cpu().numpy() for maps in rounds])
    found: list[np.ndarray] = capture.kept[key]
    return found


def map_attention(capture: Capture) -> PlaceWeights | None:
    """The attention between all positions in the first such layer that runs; None for models without."""
    if not any(isinstance(part, MapAttention) for part in capture.model.modules()):
        return None
    key = ("map attention", capture.row)
    if key not in capture.kept:
        capture.keep(key, computed_weights(capture))
    found: PlaceWeights | None = capture.kept[key]
    return found


@torch.no_grad()
def computed_weights(capture: Capture) -> PlaceWeights | None:
    entered: list[tuple[MapAttention, Tensor]] = []

    def note(module: nn.Module, given: tuple[Any, ...]) -> None:
        assert isinstance(module, MapAttention)
        entered.append((module, given[0]))

    layers = [part for part in capture.model.modules() if isinstance(part, MapAttention)]
    handles = [layer.register_forward_pre_hook(note) for layer in layers]
    try:
        capture.rerun()
    finally:
        for handle in handles:
            handle.remove()
    if not entered:
        return None
    module, maps = entered[0]
    row = min(capture.row, len(maps) - 1)
    weights = module.weights(maps[row : row + 1])[0].float().cpu().numpy()
    return PlaceWeights(weights, (maps.shape[2], maps.shape[3]))


@torch.no_grad()
def shown_image(capture: Capture) -> np.ndarray | None:
    """The input or generated image, or the spectrogram of audio: (H,W,3) uint8; None if there is none."""
    if capture.given.pixels is not None:
        return capture.given.pixels
    row, made = capture.row, capture.output
    sound = next((part for part in capture.model.modules() if isinstance(part, FramesModule)), None)
    if sound is not None and len(capture.given.args) in (1, 2):
        spectra = sound.spectra(*(*capture.given.args, None)[:2])
        return rescaled(spectra[min(row, len(spectra) - 1)][None, None])
    if not isinstance(made, Tensor) or made.dim() != 4 or made.shape[1] not in (1, 3):
        return None
    return to_rgb((made[min(row, len(made) - 1)].float() + 1) / 2)  # generators end in tanh

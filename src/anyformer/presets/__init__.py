"""Named specs: the sizes of the papers, and a small twin of each that trains on a laptop in under a minute."""

from __future__ import annotations

from collections.abc import Callable

from anyformer.errors import UserError, did_you_mean
from anyformer.presets import (
    adversarial,
    decoders,
    detection,
    encoders,
    experts,
    hyena,
    maps,
    pairs,
    pairs_of_kinds,
    recurrent,
    signals,
    small,
    tables,
    taggers,
    vision,
)
from anyformer.slots import Network

PRESETS: dict[str, Callable[[], Network]] = {
    **adversarial.PRESETS,
    **detection.PRESETS,
    **encoders.PRESETS, **decoders.PRESETS, **pairs.PRESETS, **vision.PRESETS, **tables.PRESETS, **small.PRESETS,
    **experts.PRESETS,
    **signals.PRESETS,
    **maps.PRESETS,
    **recurrent.PRESETS,
    **hyena.PRESETS,
    **taggers.PRESETS,
    **pairs_of_kinds.PRESETS,
}  # fmt: skip


def preset_names() -> list[str]:
    """Every name that `preset` knows."""
    return sorted(PRESETS)


def preset(name: str) -> Network:
    """The spec of a published model, or of its `-tiny` twin.

    >>> preset("gpt2").stack.width
    768
    """
    if name not in PRESETS:
        raise UserError(f"unknown preset {name!r}", where="preset", fix=did_you_mean(name, PRESETS))
    return PRESETS[name]()

"""The beams of beam search for a capture's source, each as a capture of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from anyformer.inspection.trace import row_of, writes

if TYPE_CHECKING:
    from anyformer.inspection.capture import Capture

BEAMS = 4


@dataclass(frozen=True)
class Beam:
    """One hypothesis of beam search."""

    ids: Tensor  # (1,T) the start token and the text
    score: float  # sum of log-probabilities, length-normalised if the settings say so


def has_beams(capture: Capture) -> bool:
    """Whether the model is an encoder-decoder that generates text."""
    return capture.modality == "pair" and capture.token_ids("decoder") is not None and writes(capture.model)


def beams_of(capture: Capture) -> list[Beam]:
    """The beams for the source, best first."""
    key = ("beams",)
    if key not in capture.kept:
        capture.keep(key, search(capture))
    found: list[Beam] = capture.kept[key]
    return found


def search(capture: Capture) -> list[Beam]:
    from anyformer.generation import Generation, generate
    from anyformer.inference.decoding_settings import with_settings
    from anyformer.inspection.given import MOST_WRITTEN

    defaults = Generation() if capture.predictor is None else capture.predictor.defaults
    wanted: dict[str, Any] = {
        "num_beams": BEAMS, "num_return_sequences": BEAMS, "do_sample": False,
        "max_new_tokens": min(defaults.max_new_tokens or MOST_WRITTEN, MOST_WRITTEN),
        "decoder_start_token_id": (capture.token_ids("decoder") or [0])[0],
    }  # fmt: skip
    source, mask = source_of(capture)
    made = generate(capture.model, source, mask, settings=with_settings(defaults, wanted))
    ends = [made.prompt + int(length) for length in made.lengths]
    return [Beam(made.ids[i : i + 1, :end], float(made.scores[i])) for i, end in enumerate(ends)]


def source_of(capture: Capture) -> tuple[Any, Any]:
    """The encoder's input of the shown row, and its mask."""
    return row_of(capture.given.args[0], capture.row), row_of(capture.given.options.get("source_mask"), capture.row)


def beam_capture(capture: Capture, number: int) -> Capture:
    """The capture of one beam: the same source, with that text as the target."""
    from anyformer.inspection.capture import Capture
    from anyformer.inspection.replay import replay

    key = ("beam", number)
    if key not in capture.kept:
        source, mask = source_of(capture)
        options = {} if mask is None else {"source_mask": mask}
        given = replace(capture.given, args=(source, beams_of(capture)[number].ids), options=options)
        found = replay(capture.model, given.args, given.options, lambda stack, layer: True)
        one = Capture(capture.source, capture.inputs, capture.predictor, capture.model, given, found, name=capture.name)
        capture.keep(key, one)
    made: Capture = capture.kept[key]
    return made

"""Conversion of user input to the tensors of a network call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from anyformer.core.model import Model, Seq2Seq
from anyformer.core.towers import Towers
from anyformer.embeds.joint import Joint
from anyformer.errors import UserError
from anyformer.heads import LM
from anyformer.log import silence

if TYPE_CHECKING:
    from anyformer.data.frame import Frame
    from anyformer.data.preprocess import Preprocess
    from anyformer.inference.predictor import Predictor

TEXT = "An old dog and a young boy"  # the default text
MOST_ROWS = 256  # most rows of a file in one look
MOST_WRITTEN = 64  # most tokens that an encoder-decoder generates if no target is given


@dataclass(frozen=True)
class NetworkInputs:
    """The arguments of `model(*args, **options)`, and the displayable image, if there is one."""

    args: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)
    pixels: np.ndarray | None = None  # (H,W,3) uint8
    text: str = ""  # a description of the input


def given_to(predictor: Predictor | None, model: nn.Module, inputs: Any, target: str | None) -> NetworkInputs:
    """The network's tensors, preprocessed by its predictor; a bare network takes tensors unchanged."""
    if predictor is None:
        return bare(model, inputs)
    if isinstance(inputs, tuple) and any(isinstance(part, Tensor) for part in inputs):
        return bare(model, inputs)
    if isinstance(inputs, Tensor) and inputs.is_floating_point():
        return bare(model, inputs)
    own = by_task(predictor, inputs) if predictor.preprocess is not None else None
    if own is not None:
        return own
    reader = getattr(predictor.spec, "encoder", predictor.spec)
    wordless = isinstance(reader, Model) and reader.embed.vocabulary is None
    if wordless and predictor.images is None and not predictor.has_columns():
        raise UserError("this model reads no text, and its folder does not say how images are prepared", where="look",
                        fix="add preprocessor_config.json, or give a tensor of pixels (1, 3, H, W)")  # fmt: skip
    if is_pair_of_towers(predictor):
        return by_towers(predictor, inputs)
    if isinstance(inputs, Tensor):
        found = by_ids(predictor, inputs)
    elif predictor.has_columns():
        found = by_columns(predictor, inputs)
    elif predictor.images is not None:
        pixels = predictor.pixels([inputs])
        found = NetworkInputs((pixels,), pixels=seen_pixels(pixels, predictor), text=shown(inputs))
    else:
        found = by_words(predictor, inputs)
    found = other_parts_left_out(predictor, found)
    return with_target(predictor, found, target) if isinstance(predictor.spec, Seq2Seq) else found


def bare(model: nn.Module, inputs: Any) -> NetworkInputs:
    """Tensors for a network without a predictor."""
    args = inputs if isinstance(inputs, tuple) else (inputs,)
    if not any(isinstance(part, Tensor) for part in args):
        raise UserError(f"a network by itself reads tensors, not {type(args[0]).__name__}", where="look",
                        fix="give token ids (1, T), or a predictor from anyformer.load")  # fmt: skip
    device = next(model.parameters()).device
    args = tuple(part.to(device) if isinstance(part, Tensor) else part for part in args)
    images = [part for part in args if isinstance(part, Tensor) and part.dim() == 4]
    shapes = ", ".join(str(tuple(part.shape)) for part in args if isinstance(part, Tensor))
    return NetworkInputs(args, pixels=rescaled(images[0]) if images else None, text=f"tensors {shapes}")


def by_task(predictor: Predictor, inputs: Any) -> NetworkInputs | None:
    """Inputs of tasks that do not read rows of columns (a series, a class to generate); None for other tasks."""
    from anyformer.tasks import find

    assert predictor.preprocess is not None
    args = find(predictor.preprocess.task).network_inputs(predictor, inputs)
    return None if args is None else NetworkInputs(args, text="an example" if inputs is None else shown(inputs))


def by_ids(predictor: Predictor, ids: Tensor) -> NetworkInputs:
    """Token ids (T,) or (B,T), checked against the vocabulary."""
    from anyformer.generation.prompts import check_ids, vocabulary_of

    reader = predictor.spec.encoder if isinstance(predictor.spec, Seq2Seq) else predictor.spec
    known = check_ids(ids[None] if ids.dim() == 1 else ids, vocabulary_of(reader.embed, "look"))
    return NetworkInputs((known.to(predictor.device),), text=f"{known.shape[1]} tokens")


def is_pair_of_towers(predictor: Predictor) -> bool:
    """Whether the model compares a text with an image, like CLIP."""
    spec = predictor.spec
    return (isinstance(spec, Towers) and predictor.tokenizer is not None and predictor.images is not None
            and (spec.first.embed.vocabulary is None) != (spec.second.embed.vocabulary is None))  # fmt: skip


def by_towers(predictor: Predictor, inputs: Any) -> NetworkInputs:
    """A text, an image, or {"text": ..., "image": ...}; a missing one is taken from the example."""
    from anyformer.data.files.example_files import picture

    named = inputs if isinstance(inputs, Mapping) else {"text" if isinstance(inputs, str) else "image": inputs}
    if not named or not named.keys() <= {"text", "image"}:
        raise UserError("this model compares a text with an image", where="look",
                        fix='give a text, an image file, or {"text": ..., "image": ...}')  # fmt: skip
    text, image = named.get("text", TEXT), named.get("image")
    words = by_words(predictor, text).args[0]
    pixels = predictor.pixels([picture() if image is None else image])
    towers = (predictor.spec.first, predictor.spec.second)
    args = tuple(pixels if tower.embed.vocabulary is None else words for tower in towers)
    beside = "an example image" if image is None else shown(image)
    return NetworkInputs(args, pixels=seen_pixels(pixels, predictor), text=f"{text} · {beside}")


def other_parts_left_out(predictor: Predictor, given: NetworkInputs) -> NetworkInputs:
    """The arguments of a joint text-image network with only a text: None for all other parts."""
    embed = getattr(predictor.spec, "embed", None)
    if not isinstance(embed, Joint) or len(given.args) != 1 or predictor.has_columns():
        return given
    texts = [part.vocabulary is not None for part in embed.parts]
    return replace(given, args=tuple(given.args[0] if i == texts.index(True) else None for i in range(len(texts))))


def by_words(predictor: Predictor, inputs: Any) -> NetworkInputs:
    """Token ids of one text."""
    if not isinstance(inputs, str):
        raise UserError(f"this model reads text, not {type(inputs).__name__}", where="look", fix="give a text")
    ids, _ = predictor.require_tokenizer().batch([inputs], side="right", device=predictor.device)
    if ids.shape[1] == 0:
        raise UserError("the text is empty", where="look", fix="give at least one word")
    return NetworkInputs((ids,), text=inputs)


def by_columns(predictor: Predictor, inputs: Any) -> NetworkInputs:
    """One row or several, as for `predict`."""
    from anyformer.data.given_rows import given_rows, is_files, report_bad
    from anyformer.data.new_rows import parse_rows, parse_table, with_place
    from anyformer.data.prepare_rows import examples_for

    preprocess = predictor.preprocess
    assert preprocess is not None
    lone = len(preprocess.columns or ()) == 1 and (isinstance(inputs, str | bytes | Path) or is_image(inputs))
    rows = given_rows([inputs] if lone or isinstance(inputs, Mapping) else inputs, preprocess)
    rows = file_rows(rows, preprocess) if is_files(rows) else rows
    new = parse_rows(rows, preprocess) if isinstance(rows, list) else parse_table(rows, preprocess)
    examples, counts = examples_for(new.frame, preprocess, predictor.tokenizer, None, images=predictor.images)
    bad = dict(sorted((counts.unread | new.bad).items()))
    report_bad({row: with_place(error, new.frame, row) for row, error in bad.items()}, "error", silence)
    batch = examples.batch(np.arange(len(new.frame))).to(predictor.device)
    named = {name: value for name, value in batch.named.items() if value is not None}
    images = [part for part in flat(batch.inputs) if part.dim() == 4]
    pixels = seen_pixels(images[0], predictor) if images else None
    return NetworkInputs(batch.inputs, named, pixels, shown(inputs))


def is_image(value: Any) -> bool:
    """Whether a value is an image: of Pillow, or a uint8 array (H,W) or (H,W,channels)."""
    shaped = isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.ndim in (2, 3)
    return shaped or type(value).__module__.partition(".")[0] == "PIL"


def file_rows(files: Any, preprocess: Preprocess) -> Frame:
    """At most MOST_ROWS rows of files, evenly spread."""
    from anyformer.data.settings import Data
    from anyformer.safe_files import scratch_folder
    from anyformer.tasks.prepare import read_new_rows

    with scratch_folder() as cache:
        frame, _ = read_new_rows(files, preprocess, Data(), cache)
        return frame.take(np.linspace(0, len(frame) - 1, min(len(frame), MOST_ROWS)).astype(np.int64))


def flat(inputs: Any) -> list[Tensor]:
    """All tensors in nested tuples and lists."""
    if isinstance(inputs, Tensor):
        return [inputs]
    return [tensor for part in inputs for tensor in flat(part)] if isinstance(inputs, tuple | list) else []


def with_target(predictor: Predictor, given: NetworkInputs, target: str | None) -> NetworkInputs:
    """Add the decoder's input: the given target, or what the model generates."""
    options = dict(given.options)
    source, mask = given.args[0], options.pop("source_mask", None)
    options.pop("target_mask", None)
    if predictor.spec.decoder.embed.vocabulary is None:  # learned queries: nothing is generated (DETR)
        return NetworkInputs((source, None), options | {"source_mask": mask}, given.pixels, given.text)
    if target is None and not isinstance(predictor.spec.head, LM):
        ids, seen = predictor.shifted(source, None if mask is None else mask.bool())
        options |= {} if mask is None else {"source_mask": mask, "target_mask": seen}
        return NetworkInputs((source, ids), options, given.pixels, given.text)
    if target is None:
        from anyformer.generation import generate
        from anyformer.generation.prompts import max_positions
        from anyformer.inference.decoding_settings import with_settings

        most = min(predictor.defaults.max_new_tokens or MOST_WRITTEN, MOST_WRITTEN)
        room, _ = max_positions(predictor.spec.decoder)
        most = most if room is None else max(1, min(most, room - 1))
        greedy = {"max_new_tokens": most, "num_beams": 1, "do_sample": False}
        settings = with_settings(predictor.defaults, greedy)
        made = generate(predictor.model, source, mask, settings=settings)
        ids = made.ids[:, : made.prompt + int(made.lengths[0])]
    else:
        start = predictor.defaults.decoder_start_token_id
        start = predictor.defaults.bos_token_id if start is None else start
        if start is None:
            raise UserError("decoder_start_token_id is not set", where="target", fix="leave target out")
        ids = torch.tensor([[start, *predictor.require_tokenizer().target.encode(target)]], device=predictor.device)
    options |= {} if mask is None else {"source_mask": mask}
    return NetworkInputs((source, ids), options, given.pixels, given.text)


def seen_pixels(pixels: Tensor, predictor: Predictor) -> np.ndarray:
    """The first image of a model's input (B,C,H,W) for display, with its normalisation undone."""
    steps = predictor.images
    if steps is None or steps.mean is None or steps.std is None or len(steps.mean) != pixels.shape[1]:
        return rescaled(pixels)
    mean, std = (pixels.new_tensor(values)[:, None, None] for values in (steps.mean, steps.std))
    return to_rgb(pixels[0] * std + mean)


def rescaled(pixels: Tensor) -> np.ndarray:
    """The first image, rescaled to its minimum and maximum."""
    image = pixels[0].float()
    low, high = image.amin(), image.amax()
    return to_rgb((image - low) / (high - low).clamp(min=1e-12))


def to_rgb(image: Tensor) -> np.ndarray:
    """(C,H,W) in 0 to 1 as (H,W,3) uint8; one channel becomes grey."""
    image = image[:3] if image.shape[0] >= 3 else image[:1].expand(3, -1, -1)
    return np.asarray((image.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).cpu().numpy())


def shown(inputs: Any) -> str:
    """A short description of the input."""
    if isinstance(inputs, str | Path):
        return str(inputs)
    if isinstance(inputs, Mapping):
        return ", ".join(f"{name} {value}" for name, value in list(inputs.items())[:8])
    if isinstance(inputs, Sequence):
        return shown(inputs[0]) if len(inputs) == 1 else f"{len(inputs)} rows"
    return type(inputs).__name__

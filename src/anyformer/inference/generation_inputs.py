"""Inputs of `Predictor.generate` for the decoder: prompts as tensors, the draft's network, guides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from anyformer.errors import UserError
from anyformer.generation import Generation
from anyformer.generation.grammar import json_guide, regex_guide
from anyformer.generation.guide import Guide

if TYPE_CHECKING:
    from anyformer.data.tokenizers.tokenizer import Tokenizer
    from anyformer.inference.predictor import Predictor

Prompt = str | Sequence[str] | Tensor  # a text, several texts, or ids (B,T)


def generation_inputs(predictor: Predictor, prompt: Prompt | None, image: Any) -> tuple[Any, Any, int]:
    """The prompts as model input, their padding mask (None: no padding), and their number."""
    if predictor.reads_images():
        return image_inputs(predictor, prompt, image)
    if image is not None:
        raise UserError("this model reads no image", where="image", fix="leave it out")
    if isinstance(prompt, Tensor):
        ids = prompt[None] if prompt.dim() == 1 else prompt
        return ids.to(predictor.device), None, len(ids)
    texts = [prompt] if isinstance(prompt, str) else list(prompt or ())
    if not texts:
        raise UserError("no prompt given", fix="give at least one text")
    ids, mask = predictor.require_tokenizer().batch(texts, side="right", device=predictor.device)
    if ids.shape[1] == 0 or not mask.any(1).all():
        raise UserError("a prompt is empty", fix="give at least one token, such as a newline")
    return ids.to(predictor.device), None if mask.all() else mask, len(ids)


def image_inputs(predictor: Predictor, prompt: Prompt | None, image: Any) -> tuple[Any, Any, int]:
    """Images with their texts as encoder input; one text may apply to several images."""
    from anyformer.inference.predict import encoder_inputs

    if image is None or isinstance(prompt, Tensor):
        raise UserError("this model reads an image", where="image", fix="give image=, and a text beside it if any")
    columns = () if predictor.preprocess is None else predictor.preprocess.columns or ()
    asked = [column.name for column in columns if column.is_text]
    if prompt and not asked:
        raise UserError("this model reads an image and no text", where="text", fix="leave the text out")
    images = list(image) if isinstance(image, list | tuple) else [image]
    texts = [prompt] * len(images) if isinstance(prompt, str | None) else list(prompt)
    if len(texts) != len(images):
        raise UserError(f"{len(images)} images and {len(texts)} texts", where="image", fix="give one text an image")
    (seen,) = (column.name for column in columns if column.is_image)
    rows = [{seen: one} | dict.fromkeys(asked, text) for one, text in zip(images, texts, strict=True)]
    return *encoder_inputs(predictor, rows), len(rows)


def draft_network(draft: Any, tokenizer: Tokenizer | None) -> Any:
    """The network of a draft predictor, which must have the same tokenizer; anything else is returned unchanged."""
    from anyformer.inference.predictor import Predictor

    if not isinstance(draft, Predictor):
        return draft
    if tokenizer is not None and draft.tokenizer is not None:
        if tokenizer.sha256 != draft.tokenizer.sha256:
            raise UserError("the draft has another tokenizer", where="draft",
                            fix="use a draft that was trained with this one")  # fmt: skip
    return draft.model


def make_guides(
    predictor: Predictor, settings: Generation, prompts: int, json_schema: Any = None, regex: str | None = None
) -> list[Guide | None] | None:
    """One guide per output, from a JSON schema or a pattern; None if neither is given."""
    if json_schema is None and regex is None:
        return None
    if json_schema is not None and regex is not None:
        raise UserError("a text obeys a JSON schema or a pattern", fix="give one of json_schema and regex")
    count, tokenizer = prompts * settings.num_return_sequences, predictor.require_tokenizer().target
    if json_schema is not None:
        return [json_guide(tokenizer, json_schema, settings.ends) for _ in range(count)]
    return [regex_guide(tokenizer, regex or "", settings.ends) for _ in range(count)]

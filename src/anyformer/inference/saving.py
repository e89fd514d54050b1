"""Saving and exporting a predictor: anyformer folder, Hugging Face, ONNX."""

from __future__ import annotations

import copy
import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from anyformer.checkpoints.folder import save_foreign, save_own
from anyformer.checkpoints.target import new_folder
from anyformer.core.linear import LinearLayer
from anyformer.errors import UserError
from anyformer.heads.pooled import PooledModule
from anyformer.inference.decoding_settings import GENERATION_FILE, changed_settings
from anyformer.kernels.quantise import check_whole
from anyformer.nets.electra import ElectraModule

if TYPE_CHECKING:
    from anyformer.inference.predictor import Predictor

IMAGES_FILE, LABELS_FILE = "preprocessor_config.json", "preprocess.json"
logger = logging.getLogger("anyformer")


def save_predictor(predictor: Predictor, folder: str | Path) -> Path:
    """Write an anyformer folder: anyformer.json, model.safetensors, tokenizer and preprocessing."""
    check_whole(predictor.model, folder)
    with new_folder(folder, needed=bytes_of(predictor.model)) as path:
        save_own(path, predictor.spec, predictor.model)
        save_around(predictor, path)
        if predictor.preprocess is not None:
            (path / LABELS_FILE).write_text(predictor.preprocess.to_json(), encoding="utf-8")
        elif predictor.labels is not None:
            (path / LABELS_FILE).write_text(json.dumps({"labels": predictor.labels}, indent=1) + "\n", encoding="utf-8")
    return Path(folder)


def export_predictor(predictor: Predictor, folder: str | Path, to: str = "hf") -> Path:
    """Export a folder: "hf" opens in transformers and vLLM, "onnx" in ONNX Runtime."""
    if to not in ("hf", "onnx"):
        raise UserError(f"unknown format {to!r}", where="export", fix='use "hf" or "onnx"')
    check_whole(predictor.model, folder)
    made = with_calibrated_logits(predictor)
    with new_folder(folder, needed=bytes_of(predictor.model)) as path:
        if to == "onnx":
            from anyformer.checkpoints.onnx import export_onnx

            export_onnx(path, made)
        else:
            export_hf(made, path)
    return Path(folder)


def export_hf(predictor: Predictor, folder: Path) -> None:
    """Write the files that transformers opens into an empty folder."""
    named = {} if predictor.labels is None else {
        "id2label": {str(i): name for i, name in enumerate(predictor.labels)},
        "label2id": {name: i for i, name in enumerate(predictor.labels)},
    }  # fmt: skip
    config = hf_config(predictor) | dict(predictor.opened.config) | named
    if isinstance(predictor.model, ElectraModule):  # a narrow generator would look like a BERT
        config |= {"model_type": "electra"}
    for name, model in predictor.networks().items():
        save_foreign(folder / name, model.spec, model, config=config)
        save_around(predictor, folder / name)


def hf_config(predictor: Predictor) -> dict[str, Any]:
    """Token ids and lengths for config.json; without them transformers would use its defaults."""
    if predictor.opened.family is not None or predictor.tokenizer is None:
        return {}
    tokenizer = predictor.tokenizer
    found: dict[str, Any] = {
        "bos_token_id": tokenizer.bos,
        "eos_token_id": tokenizer.eos,
        "pad_token_id": tokenizer.pad,
    }
    if predictor.preprocess is not None and predictor.preprocess.length is not None:
        found["max_position_embeddings"] = predictor.preprocess.length
    if predictor.defaults.decoder_start_token_id is not None:  # transformers shifts targets by it
        found["decoder_start_token_id"] = predictor.defaults.decoder_start_token_id
    return found


def save_around(predictor: Predictor, folder: Path) -> None:
    """Write the files beside the weights: tokenizer, image preprocessing and decoding settings."""
    if predictor.tokenizer is not None:
        predictor.tokenizer.save(folder)
    if predictor.images is not None:
        (folder / IMAGES_FILE).write_text(json.dumps(predictor.images.to_dict(), indent=2) + "\n", encoding="utf-8")
    settings = {
        name: value for name, value in changed_settings(predictor.defaults).items() if name not in ("seed", "logprobs")
    }
    if settings:
        (folder / GENERATION_FILE).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def with_calibrated_logits(predictor: Predictor) -> Predictor:
    """Fold the calibration temperature into the logits, for formats without a temperature.

    The last linear layer is copied and its weights divided by the temperature. A threshold cannot be exported.
    """
    fitted = None if predictor.preprocess is None else predictor.preprocess.calibration
    if fitted is None:
        return predictor
    if fitted.threshold is not None:
        logger.warning(f"export   leaves out the threshold {fitted.threshold:g}: others answer by the likeliest class")
    scale = torch.tensor(fitted.temperature)
    head = getattr(predictor.model, "head", None)
    if not isinstance(head, PooledModule) or head.out is None or predictor.spec.ensemble is not None:
        if bool((scale != 1).any()):
            logger.warning(f"export   gives plain logits, without the temperature {scale.tolist()}")
        return predictor
    model = copy.copy(predictor.model)
    model._modules = dict(predictor.model._modules)
    made = copy.copy(head)
    made._modules, made.out = dict(head._modules), scaled_linear(head.out, 1 / scale)
    model.head = made
    return replace(predictor, opened=replace(predictor.opened, model=model))


def scaled_linear(layer: LinearLayer, factor: Tensor) -> LinearLayer:
    """A copy of a linear layer with its outputs scaled, by one factor or one per output."""
    made = copy.deepcopy(layer)
    with torch.no_grad():
        factor = factor.to(made.weight)
        made.weight.mul_(factor[:, None])
        if made.bias is not None:
            made.bias.mul_(factor)
    return made


def bytes_of(model: torch.nn.Module) -> int:
    """Bytes of a model's weights on disk."""
    return sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())

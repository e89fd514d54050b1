"""ONNX for encoders, classifiers and image models: one forward pass, any batch and length."""

from __future__ import annotations

import json
import logging
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from anyformer.checkpoints.folder import fresh
from anyformer.core.model import Model
from anyformer.embeds.conv_stem import ConvStem
from anyformer.embeds.patches import Patches
from anyformer.embeds.tokens import Tokens
from anyformer.errors import UserError
from anyformer.extras import require
from anyformer.kernels.quantise import check_whole
from anyformer.slots import compiles

OPSET = 20


class TextGraph(nn.Module):
    """A model with tensors as its only inputs and output, as ONNX requires."""

    def __init__(self, model: nn.Module, segments: bool) -> None:
        super().__init__()
        self.model, self.segments = model, segments

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        kinds = token_type_ids if self.segments else None
        return answer(self.model(input_ids, mask=attention_mask.bool(), segments=kinds))


class ImageGraph(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixel_values: Tensor) -> Tensor:
        return answer(self.model(pixel_values))


def answer(out: Any) -> Tensor:
    return out.hidden if out.logits is None else out.logits


def export_onnx(folder: str | Path, predictor: Any) -> Path:
    """Write model.onnx and the files beside it; decoders are rejected."""
    spec, model = predictor.spec, predictor.model
    check_whole(model, "--to onnx")
    if not isinstance(spec, Model) or spec.stack.causal:
        raise UserError(
            "only encoders, classifiers and image models go to ONNX", where="--to onnx", fix="use --to hf for a decoder"
        )
    if not compiles(spec):
        raise UserError("a recurrence goes token by token, which has no graph of one length", where="--to onnx",
                        fix="keep it as an anyformer folder")  # fmt: skip
    for module in ("onnx", "onnxscript"):  # check here: torch's exporter fails late
        require(module, "ONNX needs", where="--to onnx")
    graph, given, dynamic = inputs_of(spec, model)
    folder = fresh(folder)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():  # the exporter warns about its own internals
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            graph.eval(), given, dynamo=True, dynamic_shapes=dynamic, opset_version=OPSET, verbose=False
        )
    assert program is not None
    program.save(str(folder / "model.onnx"))
    predictor.save_around(folder)
    if predictor.labels is not None:
        (folder / "labels.json").write_text(json.dumps(predictor.labels) + "\n", encoding="utf-8")
    return folder


def inputs_of(spec: Model, model: nn.Module) -> tuple[nn.Module, tuple[Tensor, ...], tuple[Any, ...]]:
    """The graph to trace, example inputs, and their dynamic axes."""
    if isinstance(spec.embed, ConvStem | Patches):
        rows, columns = spec.embed.pixels
        pixels = torch.zeros(2, spec.embed.channels, rows, columns)
        return ImageGraph(model), (pixels,), ({0: torch.export.Dim("batch")},)
    if not isinstance(spec.embed, Tokens):
        raise UserError(
            f"{type(spec.embed).__name__} inputs have no ONNX form yet",
            where="--to onnx",
            fix="export text or image models",
        )
    length = min(spec.embed.limit or 16, 16)
    ids = torch.zeros(2, length, dtype=torch.long)
    mask, axes = (
        torch.ones_like(ids),
        {0: torch.export.Dim("batch"), 1: torch.export.Dim("length", max=spec.embed.limit or 2**16)},
    )
    if spec.embed.segments:
        return TextGraph(model, True), (ids, mask, torch.zeros_like(ids)), (axes, axes, axes)
    return TextGraph(model, False), (ids, mask), (axes, axes)

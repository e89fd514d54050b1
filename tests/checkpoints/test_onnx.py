"""ONNX files run by ONNX Runtime give our answers, at other batch sizes and lengths than they were traced with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

from anyformer import LM, Pooled, TokenHead, preset, replace_in
from anyformer.checkpoints.folder import Opened
from anyformer.errors import UserError
from anyformer.inference.predictor import Predictor


def predictor(spec: object) -> Predictor:
    model = spec.build(seed=0).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.1)
    return Predictor(Opened(spec, model))


def run(folder: Path, **inputs: torch.Tensor) -> np.ndarray:
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    return session.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})[0]


TEXT = {
    "bert, bare": preset("bert-base-tiny"),
    "distilbert, classify": replace_in(preset("distilbert-tiny"), {"head": Pooled(classes=3, dense=True, act="relu")}),
    "roberta, tag": replace_in(preset("roberta-base-tiny"), {"head": TokenHead(classes=5)}),
    "n-grams of one text": preset("encoder-mini"),
    "n-grams of two texts": replace_in(preset("encoder-mini"), {"embed": preset("bert-base-tiny").embed}),
    "albert, masked": replace_in(preset("albert-base-tiny"), {"head": LM(transform="gelu", bias=True)}),
}


@pytest.mark.parametrize("name", TEXT)
@torch.no_grad()
def test_text_models_equal_onnx_runtime(name: str, tmp_path: Path) -> None:
    made = predictor(TEXT[name])
    folder = made.export(tmp_path / "onnx", to="onnx")
    for batch, length in ((1, 5), (3, 33)):
        ids, mask = torch.randint(0, 512, (batch, length)), torch.ones(batch, length, dtype=torch.long)
        mask[-1, -2:] = 0
        inputs = {"input_ids": ids, "attention_mask": mask}
        kinds = torch.randint(0, made.spec.embed.segments, (batch, length)) if made.spec.embed.segments else None
        out = made.model(ids, mask=mask.bool(), segments=kinds)
        right = out.hidden if out.logits is None else out.logits
        theirs = torch.from_numpy(run(folder, **inputs, **({} if kinds is None else {"token_type_ids": kinds})))
        real = mask.bool() if right.dim() == 3 else slice(None)
        assert (theirs[real] - right[real]).abs().max() < 1e-4


@torch.no_grad()
def test_image_models_equal_onnx_runtime(tmp_path: Path) -> None:
    made = predictor(preset("vit-b16-tiny"))
    folder = made.export(tmp_path / "onnx", to="onnx")
    pixels = torch.randn(3, 3, 32, 32)
    assert (torch.from_numpy(run(folder, pixel_values=pixels)) - made.model(pixels).logits).abs().max() < 1e-4


def test_a_decoder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="use --to hf"):
        predictor(preset("gpt2-tiny")).export(tmp_path / "onnx", to="onnx")
    assert not (tmp_path / "onnx").exists()

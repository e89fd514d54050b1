"""A calibrated classifier gives others the probabilities that it gives here."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
import torch

from anyformer import MLP, Attention, Block, Learned, Model, Pooled, Stack, Tokens
from anyformer.checkpoints.folder import Opened
from anyformer.data.calibration import Calibration
from anyformer.data.preprocess import Preprocess
from anyformer.data.tokenizers.tokenizer import train_tokenizer
from anyformer.inference.predictor import Predictor
from tests.families.parity import quietly

TEMPERATURE = 2.5
TEXTS = ["a rose is a rose", "no rose is blue"]


@pytest.fixture
def predictor() -> Predictor:
    """A BERT with three classes whose logits were found too sure of themselves."""
    words = train_tokenizer(TEXTS * 4, "wordpiece", 60)
    block = Block(mixer=Attention(heads=4), feed=MLP(act="gelu"), place="post")
    embed = Tokens(vocab=words.size, position=Learned(32), segments=2, norm=block.norm)
    spec = Model(embed=embed, stack=Stack(width=32, depth=2, block=block),
                 head=Pooled(classes=3, pool="first", dense=True, act="tanh"), init="bert")  # fmt: skip
    model = spec.build(seed=0)
    with torch.no_grad():
        model.head.out.weight.mul_(30.0)  # answers that differ
    kept = Preprocess(task="classify", calibration=Calibration(temperature=(TEMPERATURE,)))
    return Predictor(Opened(spec, model), tokenizer=words, labels=["a", "b", "c"], preprocess=kept)


def shares(logits: torch.Tensor) -> torch.Tensor:
    return logits.double().softmax(-1)


def test_transformers_answers_with_the_calibrated_probabilities(predictor: Predictor, tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification

    ids, mask = predictor.tokens(TEXTS)
    before = predictor.model.head.out.weight.clone()
    plain = predictor.model(ids, mask=mask).logits
    predictor.export(tmp_path / "hf")
    with quietly():
        theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path / "hf").eval()
    found = theirs(input_ids=ids, attention_mask=mask.long()).logits
    torch.testing.assert_close(shares(found), shares(plain / TEMPERATURE), atol=1e-6, rtol=1e-5)
    assert (shares(found) - shares(plain)).abs().max() > 0.05  # the control: it makes a difference
    assert torch.equal(predictor.model.head.out.weight, before)


def test_onnx_answers_with_the_calibrated_probabilities(predictor: Predictor, tmp_path: Path) -> None:
    import onnxruntime

    ids, mask = predictor.tokens(TEXTS)
    plain = predictor.model(ids, mask=mask).logits
    predictor.export(tmp_path / "onnx", "onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "onnx" / "model.onnx"))
    names = [given.name for given in session.get_inputs()]
    values = (ids.numpy(), mask.long().numpy(), np.zeros_like(ids.numpy()))
    (found,) = session.run(None, dict(zip(names, values, strict=False)))[:1]
    torch.testing.assert_close(shares(torch.from_numpy(found)), shares(plain / TEMPERATURE), atol=1e-5, rtol=1e-4)


def test_a_threshold_is_told_to_stay_behind(
    predictor: Predictor, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    chosen = predictor.calibrated(Calibration(threshold=0.3))
    with caplog.at_level(logging.WARNING, logger="anyformer"):
        chosen.export(tmp_path / "hf")
    assert "threshold 0.3" in caplog.text

"""What a model answers: its best choices with their probabilities, whatever the kind of head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from anyformer.core.model import Seq2Seq
from anyformer.heads import LM
from anyformer.inspection.axis import word_token

if TYPE_CHECKING:
    from anyformer.inspection.capture import Capture


@dataclass(frozen=True)
class PossibleAnswer:
    """One possible answer."""

    name: str
    probability: float | None
    logit: float
    id: int


def predictions(capture: Capture, output: Any = None, *, at: int | None = None, top: int = 5) -> list[PossibleAnswer]:
    """The best answers for the shown row, best first; for a model that answers by token, those of token `at`."""
    scores, kind = answer_logits(capture, output, at=at)
    if scores is None:
        return []
    if kind == "value":
        return [PossibleAnswer(f"{value:.4g}", None, value, i) for i, value in enumerate(scores.tolist())]
    shares = scores.sigmoid() if has_many_labels(capture) else scores.softmax(-1)
    best = scores.topk(min(top, len(scores)))
    return [
        PossibleAnswer(name_of(capture, i), float(shares[i]), logit, i)
        for logit, i in zip(best.values.tolist(), best.indices.tolist(), strict=True)
    ]


def answer_logits(capture: Capture, output: Any = None, *, at: int | None = None) -> tuple[Tensor | None, str]:
    """The logits (C,) of one answer, and whether they are of classes, of words, or numbers."""
    output = capture.output if output is None else output
    logits = getattr(output, "logits", None)
    if not isinstance(logits, Tensor) or logits.dim() < 2:
        return None, "none"
    own = logits[min(capture.row, len(logits) - 1)].float().cpu()
    kind = "word" if answers_words(capture) else "class"
    if own.dim() == 2:
        own = own[default_place(capture, len(own)) if at is None else min(at, len(own) - 1)]
    if kind == "class" and is_number(capture):
        return own.reshape(-1), "value"
    if kind == "class":
        own = own / temperature(capture, own)
    return own.reshape(-1), kind


def default_place(capture: Capture, length: int) -> int:
    """The token whose answer is of most interest: a hidden word, else the last one."""
    words = None if capture.predictor is None else capture.predictor.tokenizer
    ids = capture.token_ids()
    if words is not None and words.mask is not None and ids is not None and words.mask in ids:
        return ids.index(words.mask)
    return length - 1


def temperature(capture: Capture, logits: Tensor) -> Tensor:
    """What a calibrated classifier's logits are divided by, as `predict` does it."""
    kept = None if capture.predictor is None else capture.predictor.preprocess
    fitted = None if kept is None else kept.calibration
    return torch.ones(1) if fitted is None else torch.tensor(fitted.temperature, dtype=logits.dtype)


def has_many_labels(capture: Capture) -> bool:
    """Whether each label is answered by itself, so that several may come together."""
    kept = None if capture.predictor is None else capture.predictor.preprocess
    return kept is not None and kept.multi


def head_of(capture: Capture) -> Any:
    spec = getattr(capture.model, "spec", None)
    return getattr(spec, "head", None)


def answers_words(capture: Capture) -> bool:
    return isinstance(head_of(capture), LM)


def is_number(capture: Capture) -> bool:
    return getattr(head_of(capture), "answers", None) == "numbers"


def name_of(capture: Capture, number: int) -> str:
    """A class by its label, a word by its text."""
    predictor = capture.predictor
    if predictor is None:
        return f"#{number}"
    if not answers_words(capture):
        return predictor.label(number)
    words = predictor.tokenizer
    if words is None:
        return f"#{number}"
    return word_token(words.target if isinstance(predictor.spec, Seq2Seq) else words, number).text

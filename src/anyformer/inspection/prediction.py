"""A model's top predictions with their probabilities, for any kind of head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from anyformer.core.model import Seq2Seq
from anyformer.core.towers import Towers
from anyformer.heads import LM, Boxes, Forecast, ImageTextHead, LMWithPair, Replaced, Span
from anyformer.inspection.axis import SPECIAL, Token, text_of, word_token

if TYPE_CHECKING:
    from anyformer.data.targets import Values
    from anyformer.inspection.capture import Capture


SPAN_STARTS, LONGEST_SPAN = 20, 30  # candidate start tokens of an answer span, and its longest length


@dataclass(frozen=True)
class PossibleAnswer:
    """One predicted answer."""

    name: str  # a class, a word, or the name of a number
    probability: float | None  # None for a number
    logit: float  # or the number itself, in the target's units
    id: int


def predictions(capture: Capture, output: Any = None, *, at: int | None = None, top: int = 5) -> list[PossibleAnswer]:
    """The top predictions for the shown row, best first; for per-token predictions those of token `at`."""
    scores, kind = answer_logits(capture, output, at=at)
    if scores is None:
        return []
    if isinstance(head_of(capture), Span):
        return best_spans(capture, row_of(capture, output), top)
    if kind == "value":
        return [PossibleAnswer(number_name(capture, i), None, value, i) for i, value in enumerate(scores.tolist())]
    shares = scores.sigmoid() if has_many_labels(capture) else scores.softmax(-1)
    best = scores.topk(min(top, len(scores)))
    return [
        PossibleAnswer(name_of(capture, i), float(shares[i]), logit, i)
        for logit, i in zip(best.values.tolist(), best.indices.tolist(), strict=True)
    ]


def best_spans(capture: Capture, logits: Tensor, top: int) -> list[PossibleAnswer]:
    """The best answer spans from logits (T,2) of starts and ends; their `id` is the start token."""
    tokens = answering_tokens(capture)
    shares = logits.softmax(0)
    found = sorted(
        (
            (float(shares[first, 0] * shares[last, 1]), first, last)
            for first in shares[:, 0].topk(min(SPAN_STARTS, len(shares))).indices.tolist()
            for last in range(first, min(first + LONGEST_SPAN, len(shares)))
            if all(token.kind != SPECIAL for token in tokens[first : last + 1])
        ),
        reverse=True,
    )
    return [
        PossibleAnswer(text_of(tokens[first : last + 1]).strip(), share,
                       float(logits[first, 0] + logits[last, 1]), first)
        for share, first, last in found[:top]
    ]  # fmt: skip


def answering_tokens(capture: Capture) -> tuple[Token, ...]:
    """The tokens that the head reads: for an encoder-decoder the decoder's."""
    return (capture.axes.get("") or capture.axes["decoder"]).tokens


def row_of(capture: Capture, output: Any = None) -> Tensor:
    """The logits (C,) or (T,C) of the shown row."""
    logits: Tensor = (capture.output if output is None else output).logits
    return logits[min(capture.row, len(logits) - 1)].float().cpu()


def answer_logits(capture: Capture, output: Any = None, *, at: int | None = None) -> tuple[Tensor | None, str]:
    """The logits (C,) of one prediction with "word" or "class", or numbers in the target's units with "value"."""
    output = capture.output if output is None else output
    logits = getattr(output, "logits", None)
    if not isinstance(logits, Tensor) or logits.dim() < 2:
        return None, "none"
    own = one_answer(capture, row_of(capture, output), at)
    kind = "word" if answers_words(capture) else "class"
    if kind == "class" and (is_number(capture) or isinstance(spec_of(capture), Towers)):
        return in_units(capture, own.reshape(-1)), "value"
    if kind == "class":
        own = own / temperature(capture, own)
    return own.reshape(-1), kind


def one_answer(capture: Capture, own: Tensor, at: int | None) -> Tensor:
    """The logits (C,) of one prediction from those of a row: (C,), or (T,C) at token `at`."""
    if own.dim() < 2:
        return own
    head = head_of(capture)
    if isinstance(head, Span):  # only the start of the answer
        return own[:, 0]
    own = own[default_place(capture, own) if at is None else min(at, len(own) - 1)]
    return torch.cat([-own, own]) / 2 if isinstance(head, Replaced) else own  # sigmoid(x) is a softmax of -x/2 and x/2


def default_place(capture: Capture, logits: Tensor) -> int:
    """The default token of per-token logits (T,C): a masked word, the most confident object, else the last one."""
    head = head_of(capture)
    if isinstance(head, Boxes):
        return int(logits.softmax(-1)[:, :-1].amax(-1).argmax())
    if isinstance(head, Span | Replaced):
        return int(logits[:, 0].argmax())
    words = None if capture.predictor is None else capture.predictor.tokenizer
    ids = capture.token_ids()
    if words is not None and words.mask is not None and ids is not None and words.mask in ids:
        return ids.index(words.mask)
    return len(logits) - 1


def temperature(capture: Capture, logits: Tensor) -> Tensor:
    """The calibration temperature of a classifier, as used by `predict`."""
    kept = None if capture.predictor is None else capture.predictor.preprocess
    fitted = None if kept is None else kept.calibration
    return torch.ones(1) if fitted is None else torch.tensor(fitted.temperature, dtype=logits.dtype)


def has_many_labels(capture: Capture) -> bool:
    """Whether the model is a multi-label classifier."""
    kept = None if capture.predictor is None else capture.predictor.preprocess
    return kept is not None and kept.multi


def spec_of(capture: Capture) -> Any:
    return getattr(capture.model, "spec", None)


def head_of(capture: Capture) -> Any:
    return getattr(spec_of(capture), "head", None)


def answers_words(capture: Capture) -> bool:
    return isinstance(head_of(capture), LM | LMWithPair | ImageTextHead)


def is_number(capture: Capture) -> bool:
    head = head_of(capture)
    return isinstance(head, Forecast) or getattr(head, "answers", None) == "numbers"


def target_numbers(capture: Capture) -> Values | None:
    """The numeric target columns of a trained model, with their scaling."""
    from anyformer.data.targets import Values

    kept = None if capture.predictor is None else capture.predictor.preprocess
    return kept.target if kept is not None and isinstance(kept.target, Values) else None


def in_units(capture: Capture, scaled: Tensor) -> Tensor:
    """Outputs (...,outputs) of a regression head in the target's units, as from `predict`, in float64."""
    target = target_numbers(capture)
    exact = scaled.double().cpu()
    if target is None:
        return exact
    by_column = exact if len(target.names) == 1 else exact.unflatten(-1, (-1, len(target.names)))
    return torch.from_numpy(target.undo(by_column.numpy())).reshape(exact.shape)


def number_name(capture: Capture, number: int) -> str:
    """The target column of a number, with the step ahead for a forecast."""
    if isinstance(spec_of(capture), Towers):
        return "similarity, a logit"
    target = target_numbers(capture)
    if target is None:
        return f"output {number}"
    step, column = divmod(number, len(target.names))
    is_forecast = capture.output.logits.shape[-1] > len(target.names)
    return f"{target.names[column]} +{step + 1}" if is_forecast else target.names[column]


def name_of(capture: Capture, number: int) -> str:
    """The label of a class, or the text of a token."""
    predictor, head = capture.predictor, head_of(capture)
    if isinstance(head, Replaced):
        return ("original", "replaced")[number]
    if isinstance(head, Span):
        return answering_tokens(capture)[number].text
    if predictor is None:
        return f"#{number}"
    if isinstance(head, Boxes) and number == capture.output.logits.shape[-1] - 1:
        return "no object"
    if not answers_words(capture):
        return predictor.label(number)
    words = predictor.tokenizer
    if words is None:
        return f"#{number}"
    return word_token(words.target if isinstance(predictor.spec, Seq2Seq) else words, number).text

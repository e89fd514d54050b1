"""The task of an imported folder, inferred from its head: a span head means question answering."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anyformer.core.model import Model
from anyformer.heads import Span

if TYPE_CHECKING:
    from anyformer.checkpoints.folder import Opened
    from anyformer.data.preprocess import Preprocess
    from anyformer.data.tokenizers.tokenizer import Tokenizer

LENGTH, STRIDE, ANSWER = 384, 128, 30  # tokens of a window, of the overlap and of an answer, as in SQuAD


def preprocess_of(opened: Opened, tokenizer: Tokenizer | None) -> Preprocess | None:
    """Preprocessing for an imported question-answering folder; None for others."""
    spec = opened.spec
    if tokenizer is None or not isinstance(spec, Model) or not isinstance(spec.head, Span):
        return None
    from anyformer.data.answer_spans import AnswerSpan
    from anyformer.data.columns.kinds import Text
    from anyformer.data.preprocess import Preprocess
    from anyformer.data.tokenizers.parallel_encode import has_segments
    from anyformer.tasks.qa import QATask

    question, context = "question", "context"
    return Preprocess(
        task=QATask.name,
        columns=(Text(name=question), Text(name=context)),
        target=AnswerSpan(
            names=("answer",), question=question, context=context, stride=STRIDE, max_answer_length=ANSWER
        ),
        length=min(LENGTH, spec.embed.limit or LENGTH),
        segments=bool(getattr(spec.embed, "segments", 0)) and has_segments(tokenizer),
    )

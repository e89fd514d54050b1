"""Labels, numbers, tags and embeddings for rows of many clients in one batch.

`predict_what` and `embed_what` give functions from a list of rows to one answer per row, for the engine's calls. No
row's answer depends on another's: each is validated and converted by itself, padding is masked, and the answer of an
invalid row is a `UserError`, while the others get theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from anyformer.core.model import Model, Seq2Seq
from anyformer.data.columns.base import Column
from anyformer.data.columns.values import shown, spelled
from anyformer.data.files.data_urls import PICTURES_SAID, example_picture, picture, picture_bytes
from anyformer.data.new_rows import named_cells, parse_rows
from anyformer.data.preprocess import Preprocess
from anyformer.errors import UserError
from anyformer.heads import LM, Pooled, Regress, TokenHead
from anyformer.inference.predict import answer_rows
from anyformer.inference.predictor import Predictor
from anyformer.tasks import find

TOGETHER = 32  # rows per pass
Answer = Any  # a JSON value, or a UserError of this row
What = Callable[[list[Any]], Sequence[Answer]]


def predict_what(predictor: Predictor) -> What:
    """The batched prediction function of a model; raises `UserError` if the model does not predict rows."""
    if predictor.answers_rows():
        assert predictor.preprocess is not None
        kept = predictor.preprocess
        return Answering(lambda row: parse_row(row, kept), lambda rows: answer_columns(rows, predictor))
    head = predictor.head_kind()
    if head not in (Pooled, TokenHead, Regress) or (head is Pooled and predictor.spec.head.classes is None):
        writes = head is LM
        raise UserError("this model writes text and answers no rows" if writes else "this model answers no rows",
                        fix="use /v1/completions" if writes else "serve a classifier, tagger or regressor")  # fmt: skip
    if predictor.images is not None:
        return Answering(lambda row: picture(only_picture(row)), lambda rows: whole_answered(rows, predictor))
    predictor.require_tokenizer()
    answered = tags_answered if head is TokenHead else whole_answered
    return Answering(lambda row: tokens_of(row, predictor), lambda rows: answered(rows, predictor))


def embed_what(predictor: Predictor) -> What:
    """The batched embedding function: from texts, token ids or images to `{"embedding": [...], "tokens": n}` per
    row."""
    encoder = predictor.spec.encoder if isinstance(predictor.spec, Seq2Seq) else predictor.spec
    parts = () if predictor.preprocess is None else predictor.preprocess.parts
    if isinstance(encoder, Model) and predictor.images is not None and len(parts) <= 1:
        return Answering(lambda row: picture(only_picture(row)), lambda rows: embedded(rows, predictor))
    vocabulary = encoder.embed.vocabulary if isinstance(encoder, Model) else None
    if vocabulary is None or len(parts) > 1 or predictor.tokenizer is None:
        raise UserError("this model gives no vectors of texts", fix="serve a model that reads text or images alone")
    return Answering(lambda row: tokens_of(row, predictor), lambda rows: embedded(rows, predictor))


def takes(predictor: Predictor) -> str:
    """A description of the rows this model takes."""
    kept = predictor.preprocess
    if kept is not None and predictor.answers_rows():
        columns = {column.name: column for column in kept.columns or ()}
        own = find(kept.task).describe_request(kept)
        if own:
            return own
        if len(columns) == 1:
            (alone,) = columns.values()
            return f'{alone.request_noun}, bare or as {{"{alone.name}": ...}}'
        return f"an object with {listed(columns)}"
    if predictor.images is not None:
        return f'an image, {PICTURES_SAID}, bare or as {{"image": ...}}'
    return "nothing: there is no tokenizer" if predictor.tokenizer is None else "a text, or a list of token ids"


def example(predictor: Predictor) -> Any:
    """An example row."""
    kept = predictor.preprocess
    if kept is None or not predictor.answers_rows():
        return {"image": example_picture()} if predictor.images is not None else "Hello"
    own = find(kept.task).example_request(kept)
    if own is not None:
        return own
    row = {column.name: column.example() for column in kept.columns or ()}
    (alone,) = row.values() if len(row) == 1 else (None,)
    return alone if isinstance(alone, str) and not alone.startswith("data:") else row


def first_wrong(answers: Sequence[Answer]) -> UserError | None:
    """The first error among the answers, with its row number."""
    for at, answer in enumerate(answers):
        if isinstance(answer, UserError):
            return answer.inside(f"[{at}]")
    return None


class Answering:
    """Validates each row by itself, then processes the valid ones in batches of bounded size."""

    def __init__(self, check: Callable[[Any], Any], answer: Callable[[list[Any]], Sequence[Answer]]) -> None:
        self.check, self.answer = check, answer

    def __call__(self, rows: list[Any]) -> list[Answer]:
        """One answer per row, in order."""
        answers: list[Answer] = [None] * len(rows)
        right: list[tuple[int, Any]] = []
        for at, row in enumerate(rows):
            try:
                right.append((at, self.check(row)))
            except UserError as error:
                answers[at] = error
        # Batch rows of similar length, for less padding.
        right.sort(key=lambda entry: size_of(entry[1]))
        for start in range(0, len(right), TOGETHER):
            places, given = zip(*right[start : start + TOGETHER], strict=True)
            for at, answer in zip(places, self.together(list(given)), strict=True):
                answers[at] = answer
        return answers

    def together(self, rows: list[Any]) -> Sequence[Answer]:
        """Process rows as one batch; if that fails, each row by itself."""
        try:
            return self.answer(rows)
        except UserError as error:
            return [error] if len(rows) == 1 else [answer for row in rows for answer in self.together([row])]


def size_of(row: Any) -> int:
    """Approximate length of a row; 0 if all rows are alike."""
    if isinstance(row, Mapping):
        return sum(len(cell) for cell in row.values() if isinstance(cell, str | list))
    return len(row) if isinstance(row, list) else 0


# ---------------------------------------------------------------- models trained here


def parse_row(row: Any, preprocess: Preprocess) -> Any:
    """Parse one row of a request for its task."""
    own = find(preprocess.task).parse_request(row, preprocess)
    return row_cells(row, preprocess) if own is None else own


def answer_columns(rows: list[Any], predictor: Predictor) -> list[Answer]:
    """Predict rows with the preprocessing fitted in training, in memory."""
    kept = predictor.preprocess
    assert kept is not None
    task = find(kept.task)
    own = task.answer_requests(rows, predictor, batch_size=TOGETHER)
    if own is not None:
        return own
    new = parse_rows(rows, kept)
    found = answer_rows(predictor, new, new.frame, batch_size=TOGETHER)
    answers: list[Answer] = found.aligned([] if found.answers is None else task.to_json(found.answers))
    for at in found.rows[found.cut].tolist():  # a server never truncates input
        answers[at] = UserError(f"the text is longer than the {kept.length} tokens the model takes", fix="shorten it")
    for at, error in found.bad.items():
        answers[at] = error
    return answers


# ---------------------------------------------------------------- models opened from a folder


def only_picture(row: Any) -> bytes:
    """The image of a row, bare or by its name."""
    if isinstance(row, Mapping):
        if set(row) != {"image"}:
            raise UserError("a row has one entry, 'image'", fix=f"send {PICTURES_SAID}")
        row = row["image"]
    return picture_bytes(row, "image")


def tokens_of(row: Any, predictor: Predictor) -> list[int]:
    """The tokens of a text, or the given ids, checked against the model's limits."""
    tokenizer = predictor.require_tokenizer()
    encoder: Any = predictor.spec.encoder if isinstance(predictor.spec, Seq2Seq) else predictor.spec
    vocabulary, room = encoder.embed.vocabulary[0], encoder.embed.limit
    limit = min((n for n in (room, tokenizer.max_length) if n is not None), default=None)
    if isinstance(row, Mapping) and set(row) == {"text"}:
        row = row["text"]
    if isinstance(row, str):
        ids = tokenizer.encode(spelled(row))
    elif isinstance(row, list) and row and all(isinstance(one, int) and not isinstance(one, bool) for one in row):
        ids = row
        if not all(0 <= one < vocabulary for one in ids):
            raise UserError("a token id is not in the vocabulary", fix=f"ids go from 0 to {vocabulary - 1}")
    else:
        raise UserError(f"a row is {shown(row)}", fix="send a text, or a list of token ids")
    if not ids:
        raise UserError("the text is empty", fix="send at least one token")
    if limit is not None and len(ids) > limit:
        raise UserError(f"the text is {len(ids):,} tokens long, the model takes {limit:,}", fix="shorten it")
    return ids


@torch.inference_mode()
def whole_answered(rows: list[Any], predictor: Predictor) -> list[Answer]:
    """Classes or regression values of whole texts or images."""
    from anyformer.tasks.classify import label_json
    from anyformer.tasks.shapes import finite

    out = predictor.run(rows).logits.float()
    if predictor.head_kind() is Regress:
        return [{"value": finite(row[0])} if len(row) == 1 else {"values": [finite(one) for one in row]}
                for row in out.cpu().tolist()]  # fmt: skip
    labels = [predictor.label(i) for i in range(out.shape[1])]
    shares = out.softmax(-1).cpu().numpy()
    return [label_json(labels[int(row.argmax())], row, labels) for row in shares]


@torch.inference_mode()
def tags_answered(rows: list[Any], predictor: Predictor) -> list[Answer]:
    """A tag for every token of a text except added special tokens."""
    tokenizer = predictor.require_tokenizer()
    frame = {tokenizer.bos, tokenizer.eos, tokenizer.cls, tokenizer.sep, tokenizer.pad}
    best = predictor.run(rows).logits.argmax(-1).tolist()
    return [{"tags": [{"word": tokenizer.token(one), "tag": predictor.label(tag)}
                      for one, tag in zip(ids, tags, strict=False) if one not in frame]}
            for ids, tags in zip(rows, best, strict=True)]  # fmt: skip


def embedded(rows: list[Any], predictor: Predictor) -> list[Answer]:
    """One embedding per row."""
    vectors = predictor.embed(rows, batch_size=TOGETHER).float().tolist()
    return [{"embedding": vector, "tokens": len(row) if isinstance(row, list) else 0}
            for vector, row in zip(vectors, rows, strict=True)]  # fmt: skip


def listed(columns: Mapping[str, Column], most: int = 8) -> str:
    """A row's columns with their kinds, in words."""
    said = [f"{name} ({column.request_noun})" for name, column in list(columns.items())[:most]]
    return ", ".join(said) + (f" and {len(columns) - most} more" if len(columns) > most else "")


def row_cells(row: Any, preprocess: Preprocess) -> dict[str, Any]:
    """The cells of a row by column, with files decoded and bounds checked; `parse_rows` does the rest."""
    cells = dict(named_cells(row, preprocess, extra=False))
    for column in preprocess.columns or ():
        value = cells[column.name]
        cells[column.name] = None if value is None else column.from_request(value)
    return cells

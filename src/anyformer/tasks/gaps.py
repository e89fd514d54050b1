"""Fill-mask: texts with gaps, "The [MASK] sat on the mat.", and a masked language model's predictions for them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from anyformer.data.datasets.blocks import frame_of
from anyformer.data.files.tables import frame_of as table_of
from anyformer.data.frame import Frame
from anyformer.data.gather import gather, origin_of
from anyformer.data.given_rows import OnBadRows, by_row, is_files, report_bad, take_rows
from anyformer.data.settings import Data
from anyformer.errors import UserError
from anyformer.log import Log
from anyformer.safe_files import scratch_folder
from anyformer.tasks.prepare import lines_of
from anyformer.tasks.trained_model import TrainedModel, preprocess_of

GAPS = ("[MASK]", "<mask>")  # accepted mask tokens, beside the tokenizer's own
CHOICES = 5  # predictions per gap
TEXT = "text"  # name of the text column or field


@dataclass(frozen=True)
class GapChoice:
    """A predicted token for a gap."""

    token: str
    probability: float


@dataclass(frozen=True)
class FilledText:
    """A text with its gaps filled, and the predictions for each gap, the most probable first."""

    text: str
    gaps: list[list[GapChoice]]

    def to_json(self) -> dict[str, Any]:
        """The JSON of a server's answer."""
        said = [[{"token": c.token, "probability": round(c.probability, 6)} for c in gap] for gap in self.gaps]
        return {"prediction": self.text, "gaps": said}


class GapFiller:
    """A masked language model with its tokenizer, for texts with gaps."""

    def __init__(self, predictor: TrainedModel) -> None:
        if predictor.tokenizer is None or predictor.tokenizer.mask is None:
            raise UserError("the model's tokenizer has no mask token", fix="give a run of --task masked")
        self.predictor, self.tokenizer, self.mask = predictor, predictor.tokenizer, predictor.tokenizer.mask
        self.before, self.behind = frame_of(self.tokenizer)
        own = self.tokenizer.roles.get("mask", GAPS[0])
        self.pattern = re.compile("|".join(map(re.escape, dict.fromkeys((own, *GAPS)))))
        # If tokens begin with a space, a gap includes the space before it.
        spelled = self.tokenizer.spelling.tokens
        self.takes_blank = any(token is not None and len(token) > 1 and token[:1] == b" " for token in spelled)

    def encode(self, text: str) -> list[int]:
        """The model's input ids of a text, with a mask token for each gap."""
        parts = self.parts(text)
        if len(parts) < 2:
            raise UserError("the text has no gap", fix=f"write {GAPS[0]} for a word to be named")
        ids = list(self.before)
        for number, part in enumerate(parts):
            ids += ([self.mask] if number else []) + self.tokenizer.encode(part, special=False, safe=True)
        ids += self.behind
        limit = preprocess_of(self.predictor).length
        if limit is not None and len(ids) > limit:
            raise UserError(f"the text is {len(ids):,} tokens long, the model takes {limit:,}", fix="shorten it")
        return ids

    def parts(self, text: str) -> list[str]:
        """The text between the gaps."""
        found = self.pattern.split(text)
        return [part.rstrip(" ") for part in found[:-1]] + found[-1:] if self.takes_blank else found

    @torch.inference_mode()
    def fill(self, texts: Sequence[str], batch_size: int) -> list[FilledText]:
        """Fill each text; every gap is predicted independently, as in training."""
        rows = [self.encode(text) for text in texts]
        found: list[FilledText] = []
        for start in range(0, len(rows), batch_size):
            some, device = rows[start : start + batch_size], self.predictor.device
            ids, mask = self.tokenizer.padded(some, side="right", device=device)
            logits = self.predictor.model(ids, mask=mask).logits
            for text, tokens, scores in zip(texts[start:], ids, logits, strict=False):
                found.append(self.name_choices(text, scores[tokens == self.mask].float()))
        return found

    def fill_each(
        self, texts: Sequence[str], batch_size: int, on_bad_rows: OnBadRows, log: Log
    ) -> list[FilledText | None]:
        """The same for texts some of which have no gap or are too long: those are rejected or skipped."""
        bad: dict[int, UserError] = {}
        for number, text in enumerate(texts):
            try:
                self.encode(text)
            except UserError as error:
                bad[number] = error.inside(f"row {number + 1}")
        report_bad(bad, on_bad_rows, log)
        good = iter(self.fill([text for number, text in enumerate(texts) if number not in bad], batch_size))
        return [None if number in bad else next(good) for number in range(len(texts))]

    def name_choices(self, text: str, scores: torch.Tensor) -> FilledText:
        """The most probable tokens of each gap, by its logits (gaps, V)."""
        top = scores.softmax(-1).topk(min(CHOICES, scores.shape[-1]))
        gaps = [
            [GapChoice(self.spell(token).strip(), share) for token, share in zip(tokens, shares, strict=True)]
            for tokens, shares in zip(top.indices.tolist(), top.values.tolist(), strict=True)
        ]
        words = [self.spell(tokens[0]) for tokens in top.indices.tolist()]
        parts = self.parts(text)
        filled = parts[0]
        for word, part in zip(words, parts[1:], strict=True):
            filled += (word if filled else word.lstrip()) + part
        return FilledText(filled, gaps)

    def spell(self, token: int) -> str:
        """The text of a token."""
        spelled = self.tokenizer.spelling.tokens
        bytes_of = spelled[token] if token < len(spelled) else None
        return self.tokenizer.token(token) if bytes_of is None else bytes_of.decode("utf-8", "replace")


# ---------------------------------------------------------------- texts as people give them


def read_texts(source: Any) -> list[str]:
    """Texts of files (one per line, or the text column of a table), of a table, or of a list."""
    rows = take_rows(source)
    if isinstance(rows, Mapping):
        rows = by_row(rows)
    if is_files(rows):
        rows = read_files(rows)
    found = text_column(rows) if isinstance(rows, Frame) else [text_of(row) for row in rows]
    if not found:
        raise UserError("no rows given", where="rows", fix="give at least one text")
    return found


def read_files(paths: Sequence[Path]) -> Frame:
    """Text files, one row per non-empty line, or tables."""
    if origin_of(list(paths), "text") == "text":
        lines = text_column(lines_of(list(paths), TEXT, Data().format))
        return table_of({TEXT: [line for line in lines if line.strip()]})
    with scratch_folder() as folder:
        return gather(list(paths), "table", Data(), folder).frame


def text_column(frame: Frame) -> list[str]:
    """The cells of the text column: the only one, or the one named `text`."""
    name = frame.names[0] if len(frame.names) == 1 else TEXT
    if name not in frame.names:
        raise UserError("no text column given", where=frame.place(0), fix=f"call it {TEXT}")
    return [str(cell or "") for cell in frame.column(name).to_pylist()]


def text_of(row: Any) -> str:
    """The text of one row of a list or request: a string, or an object with a text."""
    found = row.get(TEXT) if isinstance(row, Mapping) else row
    if not isinstance(found, str):
        raise UserError(f"a row is {str(row)[:40]!r}", where="rows", fix=f'give a text, bare or as {{"{TEXT}": ...}}')
    return found

"""The JSON of answers, for completions and for chat."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Sequence
from typing import Any

from anyformer.serving.pieces import Reader
from anyformer.serving.written import Entry, Written, chat_logprobs, completion_logprobs

compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode  # made once: every token calls it


class Telling:
    """What both shapes share: a head that is the same in every event of an answer."""

    prefix = ""
    whole_object = ""
    part_object = ""

    def __init__(self, model: str, reader: Reader, logprobs: bool, usage: bool) -> None:
        self.id, self.created = f"{self.prefix}-{secrets.token_hex(12)}", int(time.time())
        self.model, self.reader, self.logprobs, self.usage = model, reader, logprobs, usage
        head = compact(self.head(self.part_object))
        self.opening = head[:-1] + ',"choices":['
        self.closing = '],"usage":null}' if usage else "]}"

    def head(self, kind: str) -> dict[str, Any]:
        """Who answers, and when."""
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def last(self, usage: dict[str, int]) -> str | None:
        """The event with the usage, if it was asked for."""
        return compact(self.head(self.part_object) | {"choices": [], "usage": usage}) if self.usage else None


class CompletionShape(Telling):
    """/v1/completions."""

    prefix, whole_object, part_object = "cmpl", "text_completion", "text_completion"

    def first(self, text: Written) -> str | None:
        """Nothing comes before the text."""
        return None

    def chunk(self, text: Written, piece: str, entries: Sequence[Entry], reason: str | None) -> str:
        """The event of a piece."""
        listed = compact(completion_logprobs(entries, self.reader)) if self.logprobs else "null"
        told = "null" if reason is None else f'"{reason}"'
        choice = f'{{"index":{text.index},"text":{compact(piece)},"logprobs":{listed},"finish_reason":{told}}}'
        return self.opening + choice + self.closing

    def whole(self, texts: Sequence[tuple[Written, str, list[Entry]]], usage: dict[str, int]) -> dict[str, Any]:
        """The answer at the end."""
        choices = [
            {"index": text.index, "text": said,
             "logprobs": completion_logprobs(entries, self.reader) if self.logprobs else None,
             "finish_reason": text.reason}
            for text, said, entries in texts
        ]  # fmt: skip
        return self.head(self.whole_object) | {"choices": choices, "usage": usage}


class ChatShape(Telling):
    """/v1/chat/completions."""

    prefix, whole_object, part_object = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def first(self, text: Written) -> str | None:
        """Who speaks."""
        delta = '{"role":"assistant","content":""}'
        choice = f'{{"index":{text.index},"delta":{delta},"logprobs":null,"finish_reason":null}}'
        return self.opening + choice + self.closing

    def chunk(self, text: Written, piece: str, entries: Sequence[Entry], reason: str | None) -> str:
        """The event of a piece."""
        listed = compact(chat_logprobs(entries, self.reader)) if self.logprobs else "null"
        told = "null" if reason is None else f'"{reason}"'
        delta = f'{{"content":{compact(piece)}}}' if piece or reason is None else "{}"
        choice = f'{{"index":{text.index},"delta":{delta},"logprobs":{listed},"finish_reason":{told}}}'
        return self.opening + choice + self.closing

    def whole(self, texts: Sequence[tuple[Written, str, list[Entry]]], usage: dict[str, int]) -> dict[str, Any]:
        """The answer at the end."""
        choices = [
            {"index": text.index, "message": {"role": "assistant", "content": said, "refusal": None},
             "logprobs": chat_logprobs(entries, self.reader) if self.logprobs else None,
             "finish_reason": text.reason}
            for text, said, entries in texts
        ]  # fmt: skip
        return self.head(self.whole_object) | {"choices": choices, "usage": usage}

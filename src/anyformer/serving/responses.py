"""The JSON of answers, for completions and for chat."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Sequence
from typing import Any

from anyformer.serving.detokenizer import Reader
from anyformer.serving.written import Entry, Written, chat_logprobs, compact, completion_logprobs


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

    def whole_of(self, choices: Iterable[str], usage: dict[str, int]) -> str:
        """The answer at the end, of choices that are JSON already."""
        head = compact(self.head(self.whole_object))
        return f'{head[:-1]},"choices":[{",".join(choices)}],"usage":{compact(usage)}}}'

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
        listed = completion_logprobs(entries, self.reader) if self.logprobs else "null"
        told = "null" if reason is None else f'"{reason}"'
        choice = f'{{"index":{text.index},"text":{compact(piece)},"logprobs":{listed},"finish_reason":{told}}}'
        return self.opening + choice + self.closing

    def whole(self, texts: Iterable[tuple[Written, str, list[Entry]]], usage: dict[str, int]) -> str:
        """The answer at the end."""

        def choice(text: Written, said: str, entries: Sequence[Entry]) -> str:
            listed = completion_logprobs(entries, self.reader) if self.logprobs else "null"
            return (
                f'{{"index":{text.index},"text":{compact(said)},"logprobs":{listed},"finish_reason":"{text.reason}"}}'
            )

        return self.whole_of((choice(*one) for one in texts), usage)


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
        listed = chat_logprobs(entries, self.reader) if self.logprobs else "null"
        told = "null" if reason is None else f'"{reason}"'
        delta = f'{{"content":{compact(piece)}}}' if piece or reason is None else "{}"
        choice = f'{{"index":{text.index},"delta":{delta},"logprobs":{listed},"finish_reason":{told}}}'
        return self.opening + choice + self.closing

    def whole(self, texts: Iterable[tuple[Written, str, list[Entry]]], usage: dict[str, int]) -> str:
        """The answer at the end."""

        def choice(text: Written, said: str, entries: Sequence[Entry]) -> str:
            listed = chat_logprobs(entries, self.reader) if self.logprobs else "null"
            message = f'{{"role":"assistant","content":{compact(said)},"refusal":null}}'
            return (f'{{"index":{text.index},"message":{message},"logprobs":{listed},'
                    f'"finish_reason":"{text.reason}"}}')  # fmt: skip

        return self.whole_of((choice(*one) for one in texts), usage)

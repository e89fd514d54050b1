"""The JSON of responses, for completions and for chat."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Sequence
from typing import Any

from anyformer.serving.choices import ResponseChoice, TokenLogprob, chat_logprobs, completion_logprobs, to_json
from anyformer.serving.detokenizer import Detokenizer


class ResponseFormat:
    """Common to both formats: a head that is the same in every event of a response."""

    prefix = ""
    whole_object = ""
    part_object = ""

    def __init__(self, model: str, reader: Detokenizer, logprobs: bool, usage: bool, look: bool = False) -> None:
        self.id, self.created = f"{self.prefix}-{secrets.token_hex(12)}", int(time.time())
        self.model, self.reader, self.logprobs, self.usage = model, reader, logprobs, usage
        self.look = {"id": self.id, "url": f"/look#capture={self.id}"} if look else None
        head = to_json(self.head(self.part_object))
        self.opening = head[:-1] + ',"choices":['
        self.closing = '],"usage":null}' if usage else "]}"

    def head(self, kind: str) -> dict[str, Any]:
        """The fields that identify the response."""
        found: dict[str, Any] = {"id": self.id, "object": kind, "created": self.created, "model": self.model}
        return found if self.look is None else found | {"look": self.look}

    def format_whole(self, choices: Iterable[str], usage: dict[str, int]) -> str:
        """The whole response, from choices that are already JSON."""
        head = to_json(self.head(self.whole_object))
        return f'{head[:-1]},"choices":[{",".join(choices)}],"usage":{to_json(usage)}}}'

    def last(self, usage: dict[str, int]) -> str | None:
        """The usage event, if requested."""
        return to_json(self.head(self.part_object) | {"choices": [], "usage": usage}) if self.usage else None


class CompletionFormat(ResponseFormat):
    """/v1/completions."""

    prefix, whole_object, part_object = "cmpl", "text_completion", "text_completion"

    def first(self, choice: ResponseChoice) -> str | None:
        """No opening event."""
        return None

    def chunk(self, choice: ResponseChoice, piece: str, entries: Sequence[TokenLogprob], reason: str | None) -> str:
        """The event of a piece."""
        logprobs = completion_logprobs(entries, self.reader) if self.logprobs else "null"
        finish = "null" if reason is None else f'"{reason}"'
        event = f'{{"index":{choice.index},"text":{to_json(piece)},"logprobs":{logprobs},"finish_reason":{finish}}}'
        return self.opening + event + self.closing

    def whole(self, choices: Iterable[tuple[ResponseChoice, str, list[TokenLogprob]]], usage: dict[str, int]) -> str:
        """The whole response."""

        def format_choice(choice: ResponseChoice, text: str, entries: Sequence[TokenLogprob]) -> str:
            logprobs = completion_logprobs(entries, self.reader) if self.logprobs else "null"
            return (f'{{"index":{choice.index},"text":{to_json(text)},"logprobs":{logprobs},'
                    f'"finish_reason":"{choice.reason}"}}')  # fmt: skip

        return self.format_whole((format_choice(*one) for one in choices), usage)


class ChatFormat(ResponseFormat):
    """/v1/chat/completions."""

    prefix, whole_object, part_object = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def first(self, choice: ResponseChoice) -> str | None:
        """The opening event with the role."""
        delta = '{"role":"assistant","content":""}'
        event = f'{{"index":{choice.index},"delta":{delta},"logprobs":null,"finish_reason":null}}'
        return self.opening + event + self.closing

    def chunk(self, choice: ResponseChoice, piece: str, entries: Sequence[TokenLogprob], reason: str | None) -> str:
        """The event of a piece."""
        logprobs = chat_logprobs(entries, self.reader) if self.logprobs else "null"
        finish = "null" if reason is None else f'"{reason}"'
        delta = f'{{"content":{to_json(piece)}}}' if piece or reason is None else "{}"
        event = f'{{"index":{choice.index},"delta":{delta},"logprobs":{logprobs},"finish_reason":{finish}}}'
        return self.opening + event + self.closing

    def whole(self, choices: Iterable[tuple[ResponseChoice, str, list[TokenLogprob]]], usage: dict[str, int]) -> str:
        """The whole response."""

        def format_choice(choice: ResponseChoice, text: str, entries: Sequence[TokenLogprob]) -> str:
            logprobs = chat_logprobs(entries, self.reader) if self.logprobs else "null"
            message = f'{{"role":"assistant","content":{to_json(text)},"refusal":null}}'
            return (f'{{"index":{choice.index},"message":{message},"logprobs":{logprobs},'
                    f'"finish_reason":"{choice.reason}"}}')  # fmt: skip

        return self.format_whole((format_choice(*one) for one in choices), usage)

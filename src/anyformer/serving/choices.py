"""One choice of a response: turns tokens into text and log-probabilities that are safe to send."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from anyformer.engine.sequence import Event, Failed, Finished, NewToken, Prefilled
from anyformer.serving.detokenizer import Detokenizer, StopFilter
from anyformer.serving.error_responses import HTTPError, service_unavailable, to_http_error

FinishReason = Literal["stop", "length"]  # as in OpenAI's API
FLOOR = -9999.0  # JSON has no minus infinity


@dataclass(frozen=True)
class TokenLogprob:
    """A token with its log-probability."""

    token: int
    logprob: float | None
    top: dict[int, float] | None
    offset: int  # start of its text
    size: int  # characters of it


class ResponseChoice:
    """The output of one sequence. `receive` takes the engine's events, `take_new` returns what to send."""

    def __init__(
        self,
        index: int,
        reader: Detokenizer,
        *,
        stops: Sequence[str] = (),
        ends: Sequence[int] = (),
        before: Sequence[int] = (),  # preceding tokens
        prompt: str | None = None,  # the prompt's text, if echoed
        prompt_ids: Sequence[int] = (),
        logprobs: bool = False,
        echo_only: bool = False,  # max_tokens 0: only the prompt's log-probabilities
    ) -> None:
        self.index, self.reader, self.ends = index, reader, frozenset(ends)
        self.logprobs, self.echo_only = logprobs, echo_only
        self.pieces, self.until = reader.pieces(before), StopFilter(stops)
        self.prompt, self.prompt_ids = prompt, prompt_ids
        self.tokens: list[int] = []  # not yet detokenized
        self.entries: list[TokenLogprob] = []  # not yet sent
        self.prefilled: Prefilled | None = None  # the prompt's log-probabilities, not yet among the entries
        self.offset = 0 if prompt is None else len(prompt)  # of the next token's text
        self.sent = 0  # characters
        self.count = 0  # tokens of the output
        self.reason: FinishReason | None = None
        self.error: HTTPError | None = None
        self.end_sent = False

    @property
    def finished(self) -> bool:
        """Whether the output is complete."""
        return self.reason is not None or self.error is not None

    def receive(self, event: Event) -> None:
        """Take an event of the engine."""
        if self.finished:
            return
        if isinstance(event, NewToken):
            self.count += not self.echo_only
            if event.token not in self.ends and not self.echo_only:
                self.tokens.append(event.token)
                if self.logprobs:
                    self.add_entry(event.token, event.logprob, event.top)
        elif isinstance(event, Prefilled):
            if self.logprobs and event.logprobs is not None:
                self.prefilled = event  # converted when sent: a long prompt takes a while
        elif isinstance(event, Failed):
            self.error = to_http_error(event.error)
        elif isinstance(event, Finished):
            self.finish(event)

    def finish(self, event: Finished) -> None:
        """Set the finish reason in OpenAI's terms, or the error."""
        if event.reason == "cancelled":
            self.error = service_unavailable("the request was cancelled", "cancelled")
        elif event.reason == "deadline" and not self.count:
            self.error = service_unavailable("the time of this request was over before its first token", "timeout")
        else:
            self.reason = "stop" if event.reason in ("eos", "stop") else "length"

    def add_entry(self, token: int, logprob: float | None, top: dict[int, float] | None) -> None:
        """Add a token to the list of log-probabilities."""
        raw, _ = self.reader.token(token)
        size = sum(1 for byte in raw if byte & 0xC0 != 0x80)  # UTF-8 characters that start in it
        self.entries.append(TokenLogprob(token, logprob, top, self.offset, size))
        self.offset += size

    def add_prompt_entries(self, event: Prefilled) -> None:
        """Insert the prompt's tokens before those generated so far."""
        assert event.logprobs is not None
        since, self.entries, self.offset = self.entries, [], 0
        tops = event.top or [None] * len(event.logprobs)
        for token, logprob, top in zip(self.prompt_ids, event.logprobs, tops, strict=True):
            self.add_entry(token, logprob, top)
        self.offset = len(self.prompt or "")  # by the given text, not by its detokenized tokens
        for entry in since:
            self.add_entry(entry.token, entry.logprob, entry.top)

    @property
    def waiting(self) -> int:
        """Number of tokens with log-probabilities not sent yet."""
        return len(self.entries) + (0 if self.prefilled is None else len(self.prompt_ids))

    def take_new(self) -> tuple[str, list[TokenLogprob]]:
        """Text and tokens that can be sent and have not been."""
        text = ""
        if self.prefilled is not None:
            prefilled, self.prefilled = self.prefilled, None
            self.add_prompt_entries(prefilled)
        if self.prompt is not None:
            text, self.prompt = self.prompt, None
        if self.tokens:
            tokens, self.tokens = self.tokens, []
            text += self.until.add(self.pieces.add(tokens))
        if self.finished and not self.until.found:
            text += self.until.add(self.pieces.end())
            if not self.until.found:
                text += self.until.end()
        if self.until.found:
            self.reason, self.error = "stop", None
        self.sent += len(text)
        return text, self.take_entries()

    def take_entries(self) -> list[TokenLogprob]:
        """Tokens whose text has been sent; after a stop string, only those before it."""
        if not self.logprobs:
            return []
        if self.until.found:
            sent = [entry for entry in self.entries if entry.offset < self.sent]
            self.entries = []
        elif self.until.held:
            sent = [entry for entry in self.entries if entry.offset + entry.size <= self.sent]
            self.entries = self.entries[len(sent) :]
        else:
            sent, self.entries = self.entries, []
        return sent


def finite_logprob(logprob: float | None) -> float | None:
    """A log-probability that JSON can represent."""
    return None if logprob is None else max(logprob, FLOOR) if logprob == logprob else FLOOR


to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode  # created once: called for every token


def json_list(items: Iterable[Any]) -> str:
    """A JSON list, item by item.

    The encoder holds the GIL, so encoding a long list at once would block all other requests.

    >>> json_list([1, {"a": None}])
    '[1,{"a":null}]'
    """
    return "[" + ",".join([to_json(item) for item in items]) + "]"


def completion_logprobs(entries: Sequence[TokenLogprob], reader: Detokenizer) -> str:
    """The logprobs of /v1/completions, as JSON."""
    tops = (
        None
        if entry.logprob is None
        else {reader.token(one)[1]: finite_logprob(p) for one, p in (entry.top or {}).items()}
        for entry in entries
    )
    return (f'{{"tokens":{json_list(reader.token(entry.token)[1] for entry in entries)},'
            f'"token_logprobs":{json_list(finite_logprob(entry.logprob) for entry in entries)},'
            f'"top_logprobs":{json_list(tops)},'
            f'"text_offset":{json_list(entry.offset for entry in entries)}}}')  # fmt: skip


def chat_logprobs(entries: Sequence[TokenLogprob], reader: Detokenizer) -> str:
    """The logprobs of /v1/chat/completions, as JSON."""

    def one(token: int, logprob: float | None) -> dict[str, Any]:
        raw, name = reader.token(token)
        text = raw.decode(errors="replace") if raw else name
        return {"token": text, "logprob": finite_logprob(logprob), "bytes": list(raw) if raw else None}

    content = (
        one(entry.token, entry.logprob) | {"top_logprobs": [one(*pair) for pair in (entry.top or {}).items()]}
        for entry in entries
    )
    return f'{{"content":{json_list(content)},"refusal":null}}'

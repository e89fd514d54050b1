"""One text in the making: tokens in, text and log-probabilities out, as far as they may be shown."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from anyformer.engine.jobs import Ended, Event, Failed, Job, NewToken, PromptRead
from anyformer.serving.detokenizer import Reader, UntilStop
from anyformer.serving.error_responses import Refusal, from_error, unavailable

Reason = Literal["stop", "length"]
FLOOR = -9999.0  # JSON has no minus infinity


@dataclass(frozen=True)
class Entry:
    """A token with its log-probability."""

    token: int
    logprob: float | None
    top: dict[int, float] | None
    offset: int  # where its text begins
    size: int  # characters of it


class Written:
    """The text of one job. `take` what the engine tells, then ask for what is `new`."""

    def __init__(
        self,
        index: int,
        reader: Reader,
        *,
        stops: Sequence[str] = (),
        ends: Sequence[int] = (),
        before: Sequence[int] = (),  # tokens the text goes on from
        prompt: str | None = None,  # its text, where it is to be shown too
        prompt_ids: Sequence[int] = (),
        logprobs: bool = False,
        silent: bool = False,  # no new token is wanted, only what the prompt is worth
    ) -> None:
        self.index, self.reader, self.ends, self.logprobs, self.silent = (
            index,
            reader,
            frozenset(ends),
            logprobs,
            silent,
        )
        self.pieces, self.until = reader.pieces(before), UntilStop(stops)
        self.prompt, self.prompt_ids = prompt, prompt_ids
        self.tokens: list[int] = []  # not yet read
        self.entries: list[Entry] = []  # not yet shown
        self.read: PromptRead | None = None  # the prompt's log-probabilities, not yet entered
        self.place = 0 if prompt is None else len(prompt)  # of the next token
        self.shown = 0  # characters
        self.count = 0  # tokens written
        self.reason: Reason | None = None
        self.error: Refusal | None = None
        self.job: Job | None = None
        self.told = False  # whether its end has been shown

    @property
    def over(self) -> bool:
        """Whether nothing more will come."""
        return self.reason is not None or self.error is not None

    def take(self, event: Event) -> None:
        """What the engine tells."""
        if self.over:
            return
        if isinstance(event, NewToken):
            self.count += not self.silent
            if event.token not in self.ends and not self.silent:
                self.tokens.append(event.token)
                if self.logprobs:
                    self.enter(event.token, event.logprob, event.top)
        elif isinstance(event, PromptRead):
            if self.logprobs and event.logprobs is not None:
                self.read = event  # entered when it is shown: a long prompt takes a while
        elif isinstance(event, Failed):
            self.error = from_error(event.error)
        elif isinstance(event, Ended):
            self.end(event)

    def end(self, event: Ended) -> None:
        """Why nothing more comes, in OpenAI's words."""
        if event.reason == "cancelled":
            self.error = unavailable("the request was cancelled", "cancelled")
        elif event.reason == "deadline" and not self.count:
            self.error = unavailable("the time of this request was over before its first token", "timeout")
        else:
            self.reason = "stop" if event.reason in ("eos", "stop") else "length"

    def enter(self, token: int, logprob: float | None, top: dict[int, float] | None) -> None:
        """Keep a token for the list of log-probabilities."""
        raw, _ = self.reader.token(token)
        size = sum(1 for byte in raw if byte & 0xC0 != 0x80)  # characters that begin in it
        self.entries.append(Entry(token, logprob, top, self.place, size))
        self.place += size

    def enter_prompt(self, event: PromptRead) -> None:
        """Keep the prompt's tokens, which come before those written since."""
        assert event.logprobs is not None
        since, self.entries, self.place = self.entries, [], 0
        tops = event.top or [None] * len(event.logprobs)
        for token, logprob, top in zip(self.prompt_ids, event.logprobs, tops, strict=True):
            self.enter(token, logprob, top)
        self.place = len(self.prompt or "")  # the text as it was given, whatever its tokens spell
        for entry in since:
            self.enter(entry.token, entry.logprob, entry.top)

    @property
    def waiting(self) -> int:
        """Tokens with log-probabilities that have not been shown."""
        return len(self.entries) + (0 if self.read is None else len(self.prompt_ids))

    def new(self) -> tuple[str, list[Entry]]:
        """Text and tokens that may be shown and have not been."""
        text = ""
        if self.read is not None:
            read, self.read = self.read, None
            self.enter_prompt(read)
        if self.prompt is not None:
            text, self.prompt = self.prompt, None
        if self.tokens:
            tokens, self.tokens = self.tokens, []
            text += self.until.add(self.pieces.add(tokens))
        if self.over and not self.until.found:
            text += self.until.add(self.pieces.end())
            if not self.until.found:
                text += self.until.end()
        if self.until.found:
            self.reason, self.error = "stop", None
        self.shown += len(text)
        return text, self.entries_shown()

    def entries_shown(self) -> list[Entry]:
        """Tokens whose text has been shown; where a stop was found, those before it."""
        if not self.logprobs:
            return []
        if self.until.found:
            shown = [entry for entry in self.entries if entry.offset < self.shown]
            self.entries = []
        elif self.until.held:
            shown = [entry for entry in self.entries if entry.offset + entry.size <= self.shown]
            self.entries = self.entries[len(shown) :]
        else:
            shown, self.entries = self.entries, []
        return shown


def value(logprob: float | None) -> float | None:
    """A log-probability as JSON can say it."""
    return None if logprob is None else max(logprob, FLOOR) if logprob == logprob else FLOOR


compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode  # made once: every token calls it


def listed(items: Iterable[Any]) -> str:
    """A JSON list, item by item.

    The encoder lets no other thread run until it is done, and with a long list nobody else is answered meanwhile.

    >>> listed([1, {"a": None}])
    '[1,{"a":null}]'
    """
    return "[" + ",".join([compact(item) for item in items]) + "]"


def completion_logprobs(entries: Sequence[Entry], reader: Reader) -> str:
    """The lists of /v1/completions, as JSON."""
    tops = (
        None if entry.logprob is None else {reader.token(one)[1]: value(p) for one, p in (entry.top or {}).items()}
        for entry in entries
    )
    return (f'{{"tokens":{listed(reader.token(entry.token)[1] for entry in entries)},'
            f'"token_logprobs":{listed(value(entry.logprob) for entry in entries)},'
            f'"top_logprobs":{listed(tops)},'
            f'"text_offset":{listed(entry.offset for entry in entries)}}}')  # fmt: skip


def chat_logprobs(entries: Sequence[Entry], reader: Reader) -> str:
    """The list of /v1/chat/completions, as JSON."""

    def one(token: int, logprob: float | None) -> dict[str, Any]:
        raw, name = reader.token(token)
        shown = raw.decode(errors="replace") if raw else name
        return {"token": shown, "logprob": value(logprob), "bytes": list(raw) if raw else None}

    content = (
        one(entry.token, entry.logprob) | {"top_logprobs": [one(*pair) for pair in (entry.top or {}).items()]}
        for entry in entries
    )
    return f'{{"content":{listed(content)},"refusal":null}}'

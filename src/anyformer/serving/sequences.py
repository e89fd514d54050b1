"""From a request to engine sequences: tokenize prompts, resolve settings, check lengths."""

from __future__ import annotations

import asyncio
import time
from collections import abc
from dataclasses import dataclass, replace
from typing import Any

import torch

from anyformer.engine.sequence import Sequence
from anyformer.generation import Generation
from anyformer.generation.guide import Guide
from anyformer.generation.noise import row_seeds, to_signed
from anyformer.serving.choices import ResponseChoice
from anyformer.serving.error_responses import HTTPError
from anyformer.serving.limits import Limits
from anyformer.serving.request_schemas import ChatRequest, CompletionRequest, GenerationRequest, Message
from anyformer.serving.served_model import ServedModel, override_settings

LONG = 4096  # characters from which a text is tokenized outside the event loop
COMPLETION_TOKENS = 16  # OpenAI's default for /v1/completions
CheckRoom = abc.Callable[[str, int], None]  # `Engine.check_room`


@dataclass
class PendingResponse:
    """All sequences of one request, with their response choices."""

    sequences: list[Sequence]
    choices: list[ResponseChoice]
    prompt_tokens: int

    @property
    def usage(self) -> dict[str, int]:
        """Prompt and completion tokens."""
        new = sum(choice.count for choice in self.choices)
        return {"prompt_tokens": self.prompt_tokens, "completion_tokens": new,
                "total_tokens": self.prompt_tokens + new}  # fmt: skip


async def build_completion(
    served: ServedModel, limits: Limits, request: CompletionRequest, client: str, check_room: CheckRoom
) -> PendingResponse:
    """Build the sequences of a /v1/completions request."""
    served.check_name(request.model)
    served.check_generates()
    echo = bool(request.echo)
    if echo and served.is_seq2seq:
        raise HTTPError(400, "an encoder-decoder's text does not begin with its prompt; leave echo out", param="echo")
    if request.regex is not None and request.json_schema is not None:
        raise HTTPError(400, "regex and json_schema exclude each other; send one", param="regex")
    if request.best_of not in (None, request.n or 1):
        raise HTTPError(400, "best_of must be n: no text is written that is not sent", param="best_of")
    if request.max_tokens == 0 and not echo:
        raise HTTPError(400, "max_tokens 0 leaves nothing to answer; send echo too, or at least 1", param="max_tokens")
    given = prompts_of(request.prompt)
    check_count(limits, len(given), request.n or 1)
    prompts = await tokenize_prompts(served, given, echo)
    asked = COMPLETION_TOKENS if request.max_tokens is None else request.max_tokens
    rule = ("regex", request.regex) if request.regex is not None else (
        ("json_schema", request.json_schema) if request.json_schema is not None else None)  # fmt: skip
    builder = SequenceBuilder(
        served, limits, request, client, check_room, new=max(1, asked), fixed=request.max_tokens is not None,
        rule=rule, top=request.logprobs, stops=stops_of(request.stop),
    )  # fmt: skip
    ids, echoed = [ids for ids, _ in prompts], [text for _, text in prompts]
    return await builder.build(ids, echoed, echo_only=request.max_tokens == 0)


async def build_chat(
    served: ServedModel, limits: Limits, request: ChatRequest, client: str, check_room: CheckRoom
) -> PendingResponse:
    """Build the sequences of a /v1/chat/completions request."""
    served.check_name(request.model)
    served.check_generates()
    if request.top_logprobs and not request.logprobs:
        raise HTTPError(400, "top_logprobs needs logprobs true", param="top_logprobs")
    turns = [{"role": one.role, "content": content_of(one)} for one in request.messages]
    check_count(limits, 1, request.n or 1)
    ids = await asyncio.to_thread(
        served.chat.ids, served.predictor.require_tokenizer(), turns, lambda text: check_length(served, text)
    )
    asked = request.max_completion_tokens if request.max_completion_tokens is not None else request.max_tokens
    form = request.response_format
    rule: tuple[str, Any] | None = None
    if form is not None and form.type == "json_object":
        rule = ("json_schema", {"type": "object"})
    elif form is not None and form.type == "json_schema":
        rule = ("json_schema", form.json_schema.schema_)
    elif form is not None and form.type == "regex":
        rule = ("regex", form.regex)
    builder = SequenceBuilder(
        served, limits, request, client, check_room, new=asked or limits.new_tokens, fixed=asked is not None, rule=rule,
        top=(request.top_logprobs or 0) if request.logprobs else None,
        stops=(*stops_of(request.stop), *served.chat.stops), continues=False,
    )  # fmt: skip
    return await builder.build([ids], [None])


@dataclass
class SequenceBuilder:
    """Builds the sequences of a request from their common settings."""

    served: ServedModel
    limits: Limits
    request: GenerationRequest
    client: str
    check_room: CheckRoom
    new: int  # maximal new tokens
    fixed: bool  # whether the client set it; else it is reduced to what fits
    rule: tuple[str, Any] | None
    top: int | None  # number of top tokens per position; None for no log-probabilities
    stops: tuple[str, ...]
    continues: bool = True  # whether the output continues the prompt's text directly

    async def build(
        self, prompts: abc.Sequence[list[int]], echoed: abc.Sequence[str | None], echo_only: bool = False
    ) -> PendingResponse:
        """Build one sequence for each prompt and copy."""
        copies = self.request.n or 1
        rooms = [self.room(ids) for ids in prompts]
        # Reject before doing any work.
        start = self.served.start_tokens() if self.served.is_seq2seq else []
        self.check_room(self.client, len(prompts[0]) + rooms[0] + len(start))
        guides = await self.make_guides(len(prompts) * copies)
        settings, seeds = self.settings(), self.seeds(copies)
        now = time.monotonic()
        least = min((one for one in (self.request.timeout, self.limits.deadline) if one is not None), default=None)
        sequences: list[Sequence] = []
        choices: list[ResponseChoice] = []
        for ids, room, echo in zip(prompts, rooms, echoed, strict=True):
            for copy in range(copies):
                choices.append(ResponseChoice(
                    len(choices), self.served.reader, stops=self.stops, ends=settings.ends, prompt=echo, prompt_ids=ids,
                    before=ids if self.continues and not self.served.is_seq2seq else (),
                    logprobs=self.top is not None, echo_only=echo_only,
                ))  # fmt: skip
                sequences.append(
                    Sequence(
                        start or ids,
                        replace(settings, max_new_tokens=room, seed=seeds[copy]),
                        on_event=ignore_event,
                        source=ids if self.served.is_seq2seq else None,
                        guide=guides[len(sequences)],
                        echo=echo is not None and self.top is not None,
                        deadline=None if least is None else now + least,
                        client=self.client,
                        scope=self.request.user or "",
                    )
                )
        return PendingResponse(sequences, choices, sum(map(len, prompts)))

    def settings(self) -> Generation:
        """The folder's decoding settings, overridden by the request."""
        request = self.request
        vocabulary = self.served.vocabulary
        return override_settings(self.served.settings, {
            "temperature": request.temperature, "top_p": request.top_p, "min_p": request.min_p,
            "top_k": None if request.top_k is None else min(request.top_k, vocabulary),
            "repetition_penalty": request.repetition_penalty, "presence_penalty": request.presence_penalty,
            "frequency_penalty": request.frequency_penalty, "stop_strings": self.stops,
            "logprobs": min(self.top or 0, vocabulary),
        })  # fmt: skip

    def seeds(self, copies: int) -> list[int]:
        """One seed per copy, the same as in `generate`."""
        if copies == 1 and self.request.seed is not None:
            return [to_signed(self.request.seed)]
        return row_seeds(self.request.seed, 1, copies, torch.device("cpu")).tolist()

    async def make_guides(self, count: int) -> list[Guide | None]:
        """One guide per sequence; compiled outside the event loop."""
        if self.rule is None:
            return [None] * count
        kind, rule = self.rule
        return await asyncio.to_thread(lambda: [self.served.make_guide(kind, rule) for _ in range(count)])

    def room(self, ids: list[int]) -> int:
        """How many tokens can be generated after a prompt; prompts are never truncated."""
        served = self.served
        assert served.limit is not None
        most = served.source_limit
        if served.is_seq2seq:
            if most is not None and len(ids) > most:
                raise context_exceeded(len(ids), most, 0)
            room = served.limit - 1
        else:
            room = served.limit - len(ids)
        if room < 1 or (self.fixed and self.new > room):
            raise context_exceeded(len(ids), served.limit, self.new if room >= 1 else 0)
        return min(self.new, room)


def context_exceeded(tokens: int, limit: int, new: int) -> HTTPError:
    """400, with the figures in the message and as fields."""
    asked = f" and max_tokens is {new}" if new else ""
    return HTTPError(400, f"the prompt has {tokens} tokens{asked}; the context holds {limit}", param="prompt",
                   code="context_length_exceeded", facts={"tokens": tokens + new, "limit": limit})  # fmt: skip


def ignore_event(event: object) -> None:
    """Placeholder callback until the sequence is submitted."""


def prompts_of(prompt: Any) -> list[Any]:
    """One prompt or several, as a list."""
    if isinstance(prompt, str):
        return [prompt]
    return [prompt] if isinstance(prompt[0], int) else list(prompt)


def check_count(limits: Limits, prompts: int, copies: int) -> None:
    """Check the number of sequences of a request."""
    if prompts * copies > limits.choices:
        raise HTTPError(400, f"{prompts} prompts times n {copies} are more than {limits.choices} texts",
                      param="n", code="too_many_texts", facts={"limit": limits.choices})  # fmt: skip


def check_length(served: ServedModel, prompt: str | abc.Sequence[int]) -> None:
    """Reject a prompt that cannot fit, by a bound that needs no tokenization."""
    most = served.source_limit
    least = len(prompt) if not isinstance(prompt, str) else -(-len(prompt) // served.longest_token)
    if most is not None and least > most:
        raise context_exceeded(least, most, 0)


async def tokenize_prompts(
    served: ServedModel, prompts: abc.Sequence[Any], echo: bool
) -> list[tuple[list[int], str | None]]:
    """The ids of prompts, and their texts if echoed.

    Prompts that cannot fit are rejected before any is tokenized; long ones are tokenized outside the event loop, one
    at a time, stopping at the first that does not fit.
    """
    for prompt in prompts:
        check_length(served, prompt)
    if sum(map(len, prompts)) < LONG:
        return [tokenize_prompt(served, prompt, echo) for prompt in prompts]
    return [await asyncio.to_thread(tokenize_prompt, served, prompt, echo) for prompt in prompts]


def tokenize_prompt(served: ServedModel, prompt: str | list[int], echo: bool) -> tuple[list[int], str | None]:
    """The ids of one prompt: given ids are checked, a text is tokenized."""
    if not isinstance(prompt, str):
        if max(prompt) >= served.vocabulary:
            raise HTTPError(400, f"the prompt holds the id {max(prompt)}; ids go from 0 to {served.vocabulary - 1}",
                          param="prompt", code="unknown_token")  # fmt: skip
        return list(prompt), served.reader.text(prompt) if echo else None
    tokenizer = served.predictor.require_tokenizer()
    ids = tokenizer.encode(prompt)
    check_length(served, ids)
    if not ids:
        first = tokenizer.bos if tokenizer.bos is not None else tokenizer.eos
        if first is None:
            raise HTTPError(
                400, "the prompt is empty; send at least one character", param="prompt", code="empty_prompt"
            )
        ids = [first]
    return ids, prompt if echo else None


def content_of(message: Message) -> str:
    """A message's text; parts are concatenated."""
    return message.content if isinstance(message.content, str) else "".join(part.text for part in message.content)


def stops_of(stop: str | list[str] | None) -> tuple[str, ...]:
    """Stop strings as a tuple."""
    return () if stop is None else (stop,) if isinstance(stop, str) else tuple(stop)

"""One request's sequence in the engine, and its events."""

from __future__ import annotations

import itertools
import secrets
import time
from collections import abc
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from anyformer.core.model import Seq2Seq
from anyformer.errors import UserError
from anyformer.generation.batch_sampler import SamplerState
from anyformer.generation.cache.store import SequenceStore
from anyformer.generation.config import Generation
from anyformer.generation.decode import check_settings
from anyformer.generation.guide import Guide
from anyformer.generation.prompts import check_model, decoder_of, vocabulary_of
from anyformer.generation.result import NewToken
from anyformer.generation.score import PIECE
from anyformer.generation.stops import Stops, TextOf

DEFAULT_MAX_NEW_TOKENS = 1024  # if neither the request nor the context limits it

Status = Literal["waiting", "prefill", "decode", "finished"]
FinishReason = Literal["eos", "stop", "length", "cancelled", "deadline"]


@dataclass(frozen=True)
class Prefilled:
    """The prompt has been prefilled; with its log-probabilities if `echo` was set (None for the first token)."""

    logprobs: list[float | None] | None = None
    top: list[dict[int, float] | None] | None = None


@dataclass(frozen=True)
class Finished:
    """The last event of a completed, cancelled or timed-out sequence."""

    reason: FinishReason


@dataclass(frozen=True)
class Failed:
    """The last event of a sequence that failed."""

    error: Exception


Event = Prefilled | NewToken | Finished | Failed
numbers = itertools.count()


@dataclass(eq=False)
class Sequence:
    """A prompt, its settings and its output so far. `on_event` is called on the engine's thread and must not block.

    The caller sets the fields above `status`; the others belong to the engine.
    """

    prompt: abc.Sequence[int]  # for an encoder-decoder the first tokens of the output
    settings: Generation
    on_event: abc.Callable[[Event], None]
    source: abc.Sequence[int] | None = None
    guide: Guide | None = None
    echo: bool = False  # also return the prompt's log-probabilities
    deadline: float | None = None  # of time.monotonic()
    client: str = ""  # fair queueing is per client
    scope: str = ""  # prefixes are shared within it only
    created: float = field(default_factory=time.monotonic)
    number: int = field(default_factory=lambda: next(numbers))

    status: Status = "waiting"
    cancelled: bool = False
    paused: bool = False  # the client reads too slowly: not decoded until `Engine.resume`
    tokens: list[int] = field(default_factory=list)  # prompt and output
    stops: Stops | None = None
    prompt_logprobs: PromptLogprobs | None = None
    sampler: SamplerState | None = None
    slot: int | None = None  # its number in the store
    cached: int = 0  # tokens in the KV cache
    isolated: bool = False  # its batch failed: its next step runs by itself
    last_token_at: float = 0.0

    @property
    def new_tokens(self) -> int:
        """Number of output tokens."""
        return max(0, len(self.tokens) - len(self.prompt))

    @property
    def max_new_tokens(self) -> int:
        assert self.settings.max_new_tokens is not None
        return self.settings.max_new_tokens

    @property
    def source_tokens(self) -> int:
        """Number of source tokens."""
        return 0 if self.source is None else len(self.source)

    @property
    def prefill_cost(self) -> int:
        """Tokens to run before the first new one."""
        return self.source_tokens + len(self.prompt)

    @property
    def cost(self) -> int:
        """Tokens to run in total, at most."""
        return self.prefill_cost + self.max_new_tokens

    def is_expired(self, now: float) -> bool:
        """Whether it is cancelled or past its deadline."""
        return self.cancelled or (self.deadline is not None and now >= self.deadline)

    def finish_reason(self, token: int) -> FinishReason | None:
        """Why the output ends with its newest token; None if it continues."""
        if token in self.settings.ends:
            return "eos"
        if self.guide is not None and self.guide.over:
            return "stop"
        if self.stops is not None and self.stops.ends(
            self.tokens[max(len(self.prompt), len(self.tokens) - self.stops.tail) :]
        ):
            return "stop"
        return "length" if self.new_tokens >= self.max_new_tokens else None


def prepare_sequence(sequence: Sequence, store: SequenceStore | None, text_of: TextOf | None) -> None:
    """Validate a sequence against the model and store, and complete its settings."""
    if store is None:
        raise UserError("this model writes no text", fix="ask it for labels or vectors")
    settings, spec = sequence.settings, check_model(store.model)
    vocab = vocabulary_of(decoder_of(spec).embed, "the model")
    if settings.num_beams > 1 or settings.num_return_sequences > 1:
        raise UserError("a sequence is one text, decoded token by token", where="Generation",
                        fix="use num_beams=1 and num_return_sequences=1, and a sequence for each text")  # fmt: skip
    if sequence.tokens or sequence.status != "waiting":
        raise UserError("this sequence was submitted before", fix="make a new Sequence for each text")
    prompt = check_tokens(sequence.prompt, vocab, "tokens")
    if isinstance(spec, Seq2Seq):
        check_source(spec, sequence.source)
    elif sequence.source is not None:
        raise UserError("only an encoder-decoder reads a source", fix="leave source out")
    most = limit_new_tokens(settings, len(prompt), store.limit)
    ends = [one for one in settings.ends if one < vocab]  # others never come
    settings = replace(settings, max_new_tokens=most, seed=choose_seed(settings), eos_token_id=ends)
    check_settings(settings, vocab)
    sequence.stops = Stops.of(settings.stops, text_of)
    sequence.prompt, sequence.settings = tuple(prompt), settings
    sequence.guide = None if sequence.guide is None else IsolatedGuide(sequence.guide, vocab)
    sequence.prompt_logprobs = PromptLogprobs(settings.logprobs) if sequence.echo else None
    sequence.tokens = prompt


def check_tokens(tokens: abc.Sequence[int], vocab: int, name: str) -> list[int]:
    """A copy of the tokens, checked against the vocabulary."""
    found = list(tokens)
    if not found:
        raise UserError(f"no {name} given", fix="give at least one")
    low, high = min(found), max(found)
    if low < 0 or high >= vocab:
        raise UserError(f"{name} hold the id {low if low < 0 else high}", fix=f"ids go from 0 to {vocab - 1}")
    return found


def check_source(spec: Seq2Seq, source: abc.Sequence[int] | None) -> None:
    """Check the encoder's source."""
    if source is None:
        raise UserError("an encoder-decoder needs a source", fix="pass source=")
    length = len(check_tokens(source, vocabulary_of(spec.encoder.embed, "the encoder"), "source tokens"))
    limit = spec.encoder.embed.limit
    if limit is not None and length > limit:
        raise ContextTooLong(length, limit, prompt=length)


def limit_new_tokens(settings: Generation, prompt: int, limit: int) -> int:
    """Maximal new tokens: as requested, else as many as fit, up to a default."""
    if prompt >= limit:
        raise ContextTooLong(prompt, limit, prompt=prompt)
    most = settings.max_new_tokens
    if most is None and settings.max_length is not None:
        most = settings.max_length - prompt
        if most < 1:
            raise UserError(f"max_length {settings.max_length} leaves no room after {prompt} tokens of the prompt",
                            where="Generation", fix="use max_new_tokens")  # fmt: skip
    if most is None:
        return min(limit - prompt, max(DEFAULT_MAX_NEW_TOKENS, settings.min_new_tokens or 0))
    if prompt + most > limit:
        raise ContextTooLong(prompt + most, limit, prompt=prompt)
    return most


def choose_seed(settings: Generation) -> int:
    """The seed of the output; random if none is given."""
    if settings.seed is None:
        return secrets.randbits(62)
    if isinstance(settings.seed, int):
        return settings.seed
    if len(settings.seed) != 1:
        raise UserError(f"{len(settings.seed)} seeds for one text", where="Generation.seed", fix="give one number")
    return settings.seed[0]


class ContextTooLong(UserError):
    """A sequence that exceeds the context; prompts are never truncated."""

    def __init__(self, tokens: int, limit: int, *, prompt: int) -> None:
        if tokens == prompt:
            what = f"the prompt's {prompt} tokens leave no room in a context of {limit}"
            fix = f"use {limit - 1} or fewer"
        else:
            what = f"{prompt} tokens of the prompt and {tokens - prompt} new ones do not fit a context of {limit}"
            fix = f"use max_new_tokens={limit - prompt}"
        super().__init__(what, fix=fix)
        self.tokens, self.limit = tokens, limit


class IsolatedGuide:
    """A guide whose errors affect only its own sequence: after one, all tokens are allowed until the sequence fails."""

    def __init__(self, guide: Guide, vocab: int) -> None:
        self.guide, self.vocab = guide, vocab
        self.error: Exception | None = None

    def mask(self) -> Tensor:
        """Mask of allowed next tokens, bool (V,)."""
        try:
            found = self.guide.mask()
            if not bool(found[: self.vocab].any()):
                raise UserError("the guide allows no token at all", fix="check what it was made from")
            return found
        except Exception as error:
            self.error = error
            return torch.ones(self.vocab, dtype=torch.bool)

    def accept(self, token: int) -> None:
        """Advance by a sampled token."""
        if self.error is not None:
            return
        try:
            self.guide.accept(token)
        except Exception as error:
            self.error = error

    @property
    def over(self) -> bool:
        """Whether the output is complete and must end."""
        return self.guide.over


@dataclass
class PromptLogprobs:
    """Log-probabilities of the prompt's tokens, collected piece by piece; the first has none."""

    top_count: int  # number of top tokens to return
    logprobs: list[float | None] = field(default_factory=lambda: [None])
    top: list[dict[int, float] | None] = field(default_factory=lambda: [None])

    def add(self, store: SequenceStore, hidden: Tensor, following: list[int]) -> None:
        """Add the tokens (T or T - 1) that follow the given hidden states (T,D)."""
        vocab = vocabulary_of(decoder_of(store.model.spec).embed, "the model")
        size = max(1, PIECE // vocab)
        for at in range(0, len(following), size):
            tokens = torch.tensor(following[at : at + size], device=hidden.device)
            logits = store.logits(hidden[at : at + len(tokens)])  # (N,V)
            logprobs = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
            self.logprobs += logprobs.gather(1, tokens[:, None])[:, 0].tolist()
            if self.top_count:
                best = logprobs.topk(self.top_count)
                pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
                self.top += [dict(zip(ids, values, strict=True)) for ids, values in pairs]

    def event(self) -> Prefilled:
        """The event with all of them."""
        return Prefilled(self.logprobs, self.top if self.top_count else None)

"""One job that has been accepted: what it asks for in full, and what it has come to."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from anyformer.core.model import Seq2Seq
from anyformer.engine.jobs import Finish, Job, PromptRead, TooLong
from anyformer.errors import UserError
from anyformer.generation.cache.base import Rows
from anyformer.generation.config import Generation
from anyformer.generation.decode import check_settings
from anyformer.generation.guide import Guide
from anyformer.generation.prompts import check_model, decoder_of, vocabulary_of
from anyformer.generation.score import PIECE
from anyformer.generation.stops import Stops, TextOf

MOST_NEW = 1024  # tokens of a text whose length nobody said


@dataclass(eq=False)
class Writing:
    """A job with its settings filled in, and the row that works for it."""

    job: Job
    key: int  # names it to the chooser; never used twice
    settings: Generation  # with a length and a seed
    tokens: list[int]  # the prompt and what has been written
    prompt: int
    stops: Stops | None
    guide: Watched | None
    echo: Echo | None
    row: int | None = None
    read: int = 0  # tokens the row has read
    alone: bool = False  # a step that it took part in failed: the next one it takes by itself
    last: float = 0.0  # when its newest token came

    @property
    def most(self) -> int:
        """Tokens that may be written."""
        assert self.settings.max_new_tokens is not None
        return self.settings.max_new_tokens

    @property
    def source(self) -> int:
        """Tokens an encoder reads."""
        return 0 if self.job.source is None else len(self.job.source)

    @property
    def cost(self) -> int:
        """Tokens to be read and written."""
        return self.source + self.prompt + self.most

    def finish(self, token: int) -> Finish | None:
        """Why the text ends with this token, its newest; None where it goes on."""
        if token in self.settings.ends:
            return "eos"
        if self.guide is not None and self.guide.over:
            return "stop"
        if self.stops is not None and self.stops.ends(
            self.tokens[max(self.prompt, len(self.tokens) - self.stops.tail) :]
        ):
            return "stop"
        return "length" if self.job.new >= self.most else None


def accepted(job: Job, key: int, rows: Rows | None, text_of: TextOf | None) -> Writing:
    """The job checked against the model and its rows; whatever is wrong with it is said here."""
    if rows is None:
        raise UserError("this model writes no text", fix="ask it for labels or vectors")
    settings, spec = job.settings, check_model(rows.model)
    vocab = vocabulary_of(decoder_of(spec).embed, "the model")
    if settings.num_beams > 1 or settings.num_return_sequences > 1:
        raise UserError("a job is one text, written token by token", where="Generation",
                        fix="use num_beams=1 and num_return_sequences=1, and a job for each text")  # fmt: skip
    if job.phase != "queued":
        raise UserError("this job was handed over before", fix="make a new Job for each text")
    tokens = ids(job.tokens, vocab, "tokens")
    if isinstance(spec, Seq2Seq):
        check_source(spec, job.source)
    elif job.source is not None:
        raise UserError("only an encoder-decoder reads a source", fix="leave source out")
    most = most_new(settings, len(tokens), rows.limit)
    ends = [one for one in settings.ends if one < vocab]  # others never come
    settings = replace(settings, max_new_tokens=most, seed=one_seed(settings), eos_token_id=ends)
    check_settings(settings, vocab)
    return Writing(
        job, key, settings, tokens, len(tokens), Stops.of(settings.stops, text_of),
        None if job.guide is None else Watched(job.guide, vocab), Echo(settings.logprobs) if job.echo else None,
    )  # fmt: skip


def ids(tokens: Sequence[int], vocab: int, name: str) -> list[int]:
    """A copy of what a row is to read, all of it known to the model."""
    found = list(tokens)
    if not found:
        raise UserError(f"there are no {name}", fix="give at least one")
    low, high = min(found), max(found)
    if low < 0 or high >= vocab:
        raise UserError(f"{name} hold the id {low if low < 0 else high}", fix=f"ids go from 0 to {vocab - 1}")
    return found


def check_source(spec: Seq2Seq, source: Sequence[int] | None) -> None:
    """What an encoder is to read."""
    if source is None:
        raise UserError("an encoder-decoder needs a source", fix="pass source=")
    length = len(ids(source, vocabulary_of(spec.encoder.embed, "the encoder"), "source tokens"))
    limit = spec.encoder.embed.limit
    if limit is not None and length > limit:
        raise TooLong(length, limit, prompt=length)


def most_new(settings: Generation, prompt: int, limit: int) -> int:
    """Tokens that may be written: as asked, else as many as fit, up to a bound."""
    if prompt >= limit:
        raise TooLong(prompt, limit, prompt=prompt)
    most = settings.max_new_tokens
    if most is None and settings.max_length is not None:
        most = settings.max_length - prompt
        if most < 1:
            raise UserError(f"max_length {settings.max_length} leaves no room after {prompt} tokens of the prompt",
                            where="Generation", fix="use max_new_tokens")  # fmt: skip
    if most is None:
        return min(limit - prompt, max(MOST_NEW, settings.min_new_tokens or 0))
    if prompt + most > limit:
        raise TooLong(prompt + most, limit, prompt=prompt)
    return most


def one_seed(settings: Generation) -> int:
    """The seed of the one text; drawn where none is given."""
    if settings.seed is None:
        return secrets.randbits(62)
    if isinstance(settings.seed, int):
        return settings.seed
    if len(settings.seed) != 1:
        raise UserError(f"{len(settings.seed)} seeds for one text", where="Generation.seed", fix="give one number")
    return settings.seed[0]


class Watched:
    """A guide whose mistakes stay with its own text: after one, everything is allowed until the job is ended."""

    def __init__(self, guide: Guide, vocab: int) -> None:
        self.guide, self.vocab = guide, vocab
        self.error: Exception | None = None

    def mask(self) -> Tensor:
        """Which tokens may come next, bool (V,)."""
        try:
            found = self.guide.mask()
            if not bool(found[: self.vocab].any()):
                raise UserError("the guide allows no token at all", fix="check what it was made from")
            return found
        except Exception as error:
            self.error = error
            return torch.ones(self.vocab, dtype=torch.bool)

    def accept(self, token: int) -> None:
        """That token came."""
        if self.error is not None:
            return
        try:
            self.guide.accept(token)
        except Exception as error:
            self.error = error

    @property
    def over(self) -> bool:
        """Whether nothing but the end may follow."""
        return self.guide.over


@dataclass
class Echo:
    """Log-probabilities of a prompt's own tokens, gathered piece by piece; nothing stands before the first."""

    count: int  # of the most probable tokens to tell
    logprobs: list[float | None] = field(default_factory=lambda: [None])
    top: list[dict[int, float] | None] = field(default_factory=lambda: [None])

    def add(self, rows: Rows, hidden: Tensor, following: list[int]) -> None:
        """Hidden states (T,D) of some tokens, and the tokens (T or T - 1) that follow each."""
        vocab = vocabulary_of(decoder_of(rows.model.spec).embed, "the model")
        size = max(1, PIECE // vocab)
        for at in range(0, len(following), size):
            chosen = torch.tensor(following[at : at + size], device=hidden.device)
            scores = rows.scores(hidden[at : at + len(chosen)])  # (N,V)
            scores = scores.to(torch.promote_types(scores.dtype, torch.float32)).log_softmax(-1)
            self.logprobs += scores.gather(1, chosen[:, None])[:, 0].tolist()
            if self.count:
                best = scores.topk(self.count)
                pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
                self.top += [dict(zip(tokens, values, strict=True)) for tokens, values in pairs]

    def event(self) -> PromptRead:
        """All of it."""
        return PromptRead(self.logprobs, self.top if self.count else None)

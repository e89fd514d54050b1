"""Rows with different settings, chosen together: each gets the token it would get alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from anyformer.errors import UserError
from anyformer.generation.config import DEFAULT_NEW_TOKENS, Generation
from anyformer.generation.guide import Guide
from anyformer.generation.logits import Filter, Written, narrowing, narrows, rules
from anyformer.generation.noise import draw, finest, signed
from anyformer.generation.result import NewToken
from anyformer.generation.sampler import guided, most_probable


@dataclass(frozen=True)
class Chosen:
    """One token of each row, where the model is; `told` brings all of it to the CPU at once."""

    tokens: Tensor  # (N,)
    logprobs: Tensor  # (N,) the model's own log-probability of it, whatever the settings made of that
    asked: Sequence[int]  # how many of the most probable tokens each row wants to know
    top_tokens: Tensor | None = None  # (N, most of those)
    top_logprobs: Tensor | None = None

    @cached_property
    def told(self) -> list[NewToken]:
        """Token, log-probability and most probable tokens of every row, by one transfer."""
        parts = [self.tokens[:, None], self.logprobs[:, None]]
        if self.top_tokens is not None and self.top_logprobs is not None:
            parts += [self.top_tokens, self.top_logprobs]
        kind = finest(self.tokens.device)  # ids are exact in it
        found = []
        for row, count in zip(torch.cat([part.to(kind) for part in parts], 1).tolist(), self.asked, strict=True):
            half = len(row) // 2 + 1
            top = {int(one): value for one, value in zip(row[2 : 2 + count], row[half : half + count], strict=True)}
            found.append(NewToken(int(row[0]), row[1], top if count else None))
        return found


@dataclass
class Writer:
    """What one row has been asked for and has written."""

    settings: Generation
    seed: int
    prompt: int  # tokens before the first chosen one
    last: int  # the number of the last token that may be written
    filters: list[Filter]
    guide: Guide | None = None
    new: int = 0
    text: Tensor | None = None  # (1, room) prompt and text, where a rule may ask for them

    def follow_rules(self, scores: Tensor) -> Tensor:
        """One row's scores (1,V) with what is forbidden at -inf and what is forced at 0."""
        scores = free = scores if self.guide is None else guided(scores, [self.guide])
        if self.filters:
            assert self.text is not None
            text = Written(self.text[:, : self.prompt + self.new], None, self.new, self.new == self.last)
            for apply in self.filters:
                scores = apply(scores, text)
        # Where the rules leave nothing of what the guide allows, the guide is obeyed.
        return scores if self.guide is None else scores.where((scores > -torch.inf).any(-1, keepdim=True), free)

    def note(self, tokens: Tensor, row: int) -> None:
        """The token of this row is one more that was written."""
        if self.text is not None:
            end = self.prompt + self.new
            if end == self.text.shape[1]:
                self.text = torch.cat([self.text, torch.zeros_like(self.text)], 1)
            self.text[:, end] = tokens[row]
        self.new += 1


@dataclass
class Drawing:
    """Rows that are sampled and narrowed in the same ways, each by its own numbers."""

    rows: Tensor | None  # (M,) which; None for all
    writers: list[Writer]
    filters: list[Filter]
    seeds: Tensor  # (M,)
    steps: Tensor  # (M,)

    @classmethod
    def of(cls, rows: list[int], writers: list[Writer], device: torch.device) -> Drawing:
        some = [writers[row] for row in rows]
        return cls(
            rows=None if len(rows) == len(writers) else torch.tensor(rows, device=device), writers=some,
            filters=narrowing(*(one.settings for one in some), device=device),
            seeds=torch.tensor([one.seed for one in some], device=device),
            steps=torch.tensor([one.new for one in some], device=device),
        )  # fmt: skip

    def draw(self, scores: Tensor) -> Tensor:
        """One token a row (M,) from their scores (M,V)."""
        for apply in self.filters:
            scores = apply(scores, NOTHING)
        found = draw(scores, self.seeds, self.steps)
        self.steps = self.steps + 1
        return found


NOTHING = Written(torch.empty(1, 0), None, 0, False)  # narrowing asks for no text


@dataclass
class Batch:
    """What the choices of the same rows share from step to step; made anew when other rows take part."""

    keys: list[int]
    writers: list[Writer]
    ruled: list[int]  # rows with rules or a guide
    drawings: list[Drawing]
    asked: list[int]  # how many of the most probable tokens each row wants to know


class Choosing:
    """Chooses for rows named by keys; made once, rows come and go."""

    def __init__(self, vocab: int, device: torch.device | str = "cpu") -> None:
        self.vocab, self.device = vocab, torch.device(device)
        self.writers: dict[int, Writer] = {}
        self.batch: Batch | None = None

    def add(self, key: int, settings: Generation, prompt: Sequence[int], seed: int, guide: Guide | None = None) -> None:
        """A row that is about to write behind its prompt; `seed` is for sampling."""
        if settings.num_beams > 1:
            raise UserError("beam search compares texts, rows are chosen one by one", where="Generation",
                            fix="use num_beams=1")  # fmt: skip
        filters = rules(settings, self.vocab, self.device)
        most = settings.max_new_tokens
        if most is None:
            most = DEFAULT_NEW_TOKENS if settings.max_length is None else settings.max_length - len(prompt)
        text = None
        if filters:
            text = torch.zeros(1, len(prompt) + most, dtype=torch.long, device=self.device)
            text[0, : len(prompt)] = torch.tensor(prompt, device=self.device)
        self.writers[key] = Writer(settings, signed(seed), len(prompt), most - 1, filters, guide, text=text)
        self.batch = None

    def remove(self, key: int) -> None:
        """The row writes no more."""
        del self.writers[key]
        self.batch = None

    @torch.no_grad()
    def choose(self, keys: Sequence[int], scores: Tensor) -> Chosen:
        """The next token of each row from the model's scores (N,V); ties go to the lowest id."""
        if self.batch is None or self.batch.keys != list(keys):
            self.batch = self.gather(keys)
        batch = self.batch
        raw = scores.to(torch.promote_types(scores.dtype, torch.float32))
        free = raw.clone() if batch.ruled else raw
        for row in batch.ruled:
            free[row] = batch.writers[row].follow_rules(raw[row : row + 1])[0]
        tokens = None
        if len(batch.drawings) != 1 or batch.drawings[0].rows is not None:
            tokens = most_probable(free)
        for drawing in batch.drawings:
            if drawing.rows is None:
                tokens = drawing.draw(free)
            else:
                assert tokens is not None
                tokens[drawing.rows] = drawing.draw(free[drawing.rows])
        assert tokens is not None
        norm = raw.logsumexp(-1)
        chosen = Chosen(tokens, raw.gather(1, tokens[:, None])[:, 0] - norm, batch.asked)
        most = max(batch.asked)
        if most:
            best = raw.topk(most)
            chosen = replace(chosen, top_tokens=best.indices, top_logprobs=best.values - norm[:, None])
        self.note(batch, chosen)
        return chosen

    def note(self, batch: Batch, chosen: Chosen) -> None:
        """Write down what was chosen; only a guide must know it on the CPU."""
        for row, writer in enumerate(batch.writers):
            if writer.guide is not None:
                writer.guide.accept(chosen.told[row].token)
            writer.note(chosen.tokens, row)

    def gather(self, keys: Sequence[int]) -> Batch:
        writers = [self.writers[key] for key in keys]
        alike: dict[tuple[bool, ...], list[int]] = {}
        for row, writer in enumerate(writers):
            if writer.settings.sampled:
                alike.setdefault(narrows(writer.settings), []).append(row)
        return Batch(
            keys=list(keys), writers=writers,
            ruled=[row for row, writer in enumerate(writers) if writer.filters or writer.guide is not None],
            drawings=[Drawing.of(rows, writers, self.device) for rows in alike.values()],
            asked=[writer.settings.logprobs for writer in writers],
        )  # fmt: skip

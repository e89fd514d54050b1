"""Guesses at how texts go on: from the text itself, or by a smaller model. What becomes of them: speculative.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from anyformer.core.model import Seq2Seq
from anyformer.errors import UserError
from anyformer.generation.cache.ragged import CHUNK, Texts, opened, read_on
from anyformer.generation.config import Generation
from anyformer.generation.grammar import Grammar
from anyformer.generation.prompts import Asked, check_model, check_room, decoder_of, vocabulary_of
from anyformer.generation.runners.compiled import Compiled
from anyformer.generation.runners.compiled_texts import SheetTexts
from anyformer.generation.runners.eager import at_rest, device_of
from anyformer.generation.sampler import Choice

LONGEST_MATCH = 3  # newest tokens that are looked for, then fewer of them


class Proposer(Protocol):
    """Guesses at how texts go on."""

    def propose(self, texts: Mapping[int, list[int]], room: Mapping[int, int]) -> dict[int, list[int]]:
        """At most `room` tokens for each of these texts, prompts included."""


def proposer_of(
    model: Any, draft: Any, asked: Asked, choice: Choice, settings: Generation, texts: Texts | None = None
) -> Proposer:
    """The one that a call asks for; given the model's own `texts`, a draft of its shape goes on from them."""
    if draft is None:
        return Lookup(sources(model, asked, settings.num_return_sequences), settings.prompt_lookup_num_tokens or 1)
    if settings.prompt_lookup_num_tokens:
        raise UserError("proposals come from a draft or from the prompt", where="draft",
                        fix="leave out one of draft and prompt_lookup_num_tokens")  # fmt: skip
    if isinstance(draft, str):
        raise UserError(f"there is no draft {draft!r}", where="draft",
                        fix='give a model, or "int8" for the model itself in 8 bits')  # fmt: skip
    return Draft(model, draft, asked, choice, settings, texts)


class Lookup:
    """The newest tokens are looked for in what came before; what followed there is proposed.

    The longest match wins, and of several the latest. A match that reaches the end of the text goes round, so that a
    text which repeats itself is proposed on and on.
    """

    def __init__(self, before: Sequence[list[int]], most: int) -> None:
        self.before, self.most = before, most  # what each text may also quote: its source
        self.followed: list[dict[tuple[int, ...], int]] = [{} for _ in before]  # where what followed a run stands
        self.known = [0] * len(before)

    def propose(self, texts: Mapping[int, list[int]], room: Mapping[int, int]) -> dict[int, list[int]]:
        found = {}
        for row, text in texts.items():
            whole = self.before[row] + text if self.before[row] else text
            found[row] = self.guess(row, whole, min(self.most, room[row]))
        return found

    def guess(self, row: int, text: list[int], most: int) -> list[int]:
        """How a text goes on if it repeats itself."""
        followed = self.followed[row]
        for end in range(max(1, self.known[row]), len(text)):  # runs that end before the newest token
            for size in range(1, min(LONGEST_MATCH, end) + 1):
                followed[tuple(text[end - size : end])] = end
        self.known[row] = max(self.known[row], len(text))
        for size in range(min(LONGEST_MATCH, len(text)), 0, -1):
            start = followed.get(tuple(text[-size:]))
            if start is not None:
                period = len(text) - start
                return [text[start + at % period] for at in range(most)]
        return []


class Draft:
    """A smaller model writes a few tokens ahead, by the same rules and the same noise."""

    def __init__(
        self, model: Any, draft: Any, asked: Asked, choice: Choice, settings: Generation, texts: Texts | None = None
    ) -> None:
        spec, target = check_model(draft), model.spec
        if isinstance(spec, Seq2Seq) != isinstance(target, Seq2Seq):
            raise UserError("one of model and draft is an encoder-decoder", where="draft", fix="use two of one kind")
        check_vocabulary(vocabulary_of(decoder_of(target).embed, "the model"),
                         vocabulary_of(decoder_of(spec).embed, "the draft"))  # fmt: skip
        if isinstance(spec, Seq2Seq) and isinstance(target, Seq2Seq):
            check_vocabulary(*(pair.encoder.embed.vocabulary for pair in (target, spec)))
        if device_of(draft) != device_of(model):
            raise UserError(f"the draft is on {device_of(draft)}, the model on {device_of(model)}", where="draft",
                            fix="move one of them")  # fmt: skip
        check_room(decoder_of(spec), asked.longest, asked.new)
        self.model, self.choice, self.settings = draft, choice, settings
        self.shared = isinstance(texts, SheetTexts) and isinstance(draft, Compiled)
        with at_rest(draft):
            if isinstance(texts, SheetTexts) and isinstance(draft, Compiled):
                self.texts: Texts = texts.shared_with(draft)
            else:
                self.texts = opened(draft, asked, settings.num_return_sequences)

    @torch.no_grad()
    def propose(self, texts: Mapping[int, list[int]], room: Mapping[int, int]) -> dict[int, list[int]]:
        with at_rest(self.model):
            return self.write_ahead(texts, room)

    def write_ahead(self, texts: Mapping[int, list[int]], room: Mapping[int, int]) -> dict[int, list[int]]:
        """The draft's own texts, a token a pass for all rows together."""
        found: dict[int, list[int]] = {row: [] for row in texts}
        most = {row: min(self.settings.num_assistant_tokens, room[row]) for row in texts}
        guides = {row: self.guide(row) for row in texts}
        for row, text in texts.items():
            # All but the newest token stand there as it wrote them, or as the model did; or they were refused.
            self.texts.keep(row, len(text) - 1 if self.shared else min(self.texts.lengths[row], len(text) - 1))
        pieces = {row: text[self.texts.lengths[row] :] for row, text in texts.items() if most[row] > 0}
        while pieces:
            last = read_on(self.texts, pieces, self.settings.prefill_chunk_size or CHUNK)
            pieces = {}
            for row, hidden in last.items():
                count = self.choice.limit - 1 - room[row] + len(found[row])  # tokens written before this one
                token = self.choose(row, hidden, count, guides[row])
                if token is None:
                    continue
                found[row].append(token)
                if len(found[row]) < most[row] and token not in self.settings.ends:
                    pieces[row] = [token]
        return found

    def choose(self, row: int, hidden: Tensor, count: int, guide: Grammar | None) -> int | None:
        """The token the draft would write after `count` of them; None where a guide sees no way on."""
        raw = self.texts.scores(hidden[-1:])
        raw = raw.to(torch.promote_types(raw.dtype, torch.float32))
        try:
            token = int(self.choice.choose(raw, slice(row, row + 1), count, None if guide is None else [guide]))
            if guide is not None:
                guide.accept(token)
        except UserError:
            return None
        self.choice.ids[row, self.choice.prompt + count] = token  # for the rules; what is refused is written over
        return token

    def guide(self, row: int) -> Grammar | None:
        """A copy that may be tried; guides of other kinds have none, and only the model asks them."""
        guide = None if self.choice.guides is None else self.choice.guides[row]
        return guide.fork() if isinstance(guide, Grammar) else None


def check_vocabulary(model: Any, draft: Any) -> None:
    if model != draft:
        raise UserError(f"the draft knows {draft} tokens and the model {model}", where="draft",
                        fix="use a draft with the same vocabulary")  # fmt: skip


def sources(model: Any, asked: Asked, copies: int) -> list[list[int]]:
    """What texts may quote beside their own prompts: the source, where it is written in the same tokens."""
    spec, count = model.spec, len(asked.ids)
    same = isinstance(spec, Seq2Seq) and spec.encoder.embed.vocabulary == spec.decoder.embed.vocabulary
    if not same or not isinstance(asked.source, Tensor) or asked.source.dim() != 2:
        return [[] for _ in range(count * copies)]
    real = torch.ones_like(asked.source, dtype=torch.bool) if asked.source_real is None else asked.source_real
    return [row[keep].tolist() for row, keep in zip(asked.source, real, strict=True) for _ in range(copies)]

"""Several tokens a pass: cheap guesses at what comes next are checked by the model all at once.

Which token follows is a function of the model's scores, the text so far, the seed and the number of the step: noise is
no stream of numbers but f(seed, step, token), and a draw is the argmax of scores + noise. So the model's own choice at
every place of a proposal is known after one pass over it, drawn or greedy alike, and the rule is simple: a proposed
token stands where it is the token the model chooses there itself, and the first that is not is replaced by the one it
chooses. Texts are then those of decoding without proposals, token for token, and not only in distribution; filters,
guides, ends and stop strings see each place with the text as it stands there. (Passes of other shapes round otherwise,
so where two tokens all but tie the other one may win, as between any two batch sizes.)

Proposals come from the text itself, where its newest tokens came before (`Lookup`), or from a smaller model (`Draft`),
which chooses with the same filters and the same noise: where its scores are near the model's own, the noise that
made one token win there makes it win here too, far more often than if both drew independently. The draft "int8" is the
model itself with its weights in 8 bits (own_draft.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from anyformer.generation.cache.ragged import CHUNK, opened, read_on
from anyformer.generation.config import Generation
from anyformer.generation.own_draft import drafted_by_itself
from anyformer.generation.prompts import Asked, decoder_of, vocabulary_of
from anyformer.generation.proposers import proposer_of
from anyformer.generation.result import Generated, NewToken, Reason, Step, generated
from anyformer.generation.runners.compiled import Compiled
from anyformer.generation.runners.eager import at_rest
from anyformer.generation.sampler import Choice, Guides
from anyformer.kernels.cpu import FEW


class Speculation:
    """As `Decoding`: iterate for a `Step` a token, then ask for the `result()`. Rows advance each at its own pace."""

    def __init__(self, model: Any, asked: Asked, settings: Generation, draft: Any, guides: Guides | None) -> None:
        itself = draft == "int8"
        if itself:
            model, draft = drafted_by_itself(model)
        self.model, self.settings, self.stops = model, settings, asked.stops
        vocab = vocabulary_of(decoder_of(model.spec).embed, "the model")
        self.choice = Choice(settings, asked.ids, asked.real, asked.new, vocab, guides)
        rows = len(self.choice.ids)
        real = torch.ones_like(asked.ids, dtype=torch.bool) if asked.real is None else asked.real
        prompts = [row[keep].tolist() for row, keep in zip(asked.ids, real, strict=True)]
        copies = settings.num_return_sequences
        self.tokens = [list(prompt) for prompt in prompts for _ in range(copies)]  # prompt and text, no padding
        self.texts = opened(model, asked, copies)
        self.proposer = proposer_of(model, draft, asked, self.choice, settings, self.texts if itself else None)
        chunk = settings.prefill_chunk_size or CHUNK
        read_on(self.texts, {row: tokens[:-1] for row, tokens in enumerate(self.tokens)}, chunk)
        self.written: list[list[NewToken]] = [[] for _ in range(rows)]
        self.reasons: list[Reason | None] = [None] * rows
        self.passes = [0] * rows
        self.steps: list[Step] = []
        self.count, self.over, self.dtype = 0, False, torch.float32
        # Scores of a large vocabulary cost a CPU as much as some layers: not all are made where few may be asked for,
        # unless it is code of our own that makes them, for which some are hardly more than one.
        few = FEW if isinstance(model, Compiled) and model.ours else 3
        self.block = few if self.choice.ids.device.type == "cpu" else asked.new + 1

    def __iter__(self) -> Iterator[Step]:
        while not self.over:
            yield self.advance()

    @torch.no_grad()
    def advance(self) -> Step:
        """The next token of every row; often it is there already."""
        with at_rest(self.model):
            while any(why is None and len(new) <= self.count for why, new in self.rows()):
                self.read()
        step = self.step(self.count)
        self.steps.append(step)
        self.count += 1
        self.over = all(why is not None and len(new) <= self.count for why, new in self.rows())
        return step

    def rows(self) -> Iterator[tuple[Reason | None, list[NewToken]]]:
        return zip(self.reasons, self.written, strict=True)

    def read(self) -> None:
        """One pass over the newest token and the proposals of every row that has not ended."""
        live = [row for row, why in enumerate(self.reasons) if why is None]
        room = {row: self.choice.limit - len(self.written[row]) - 1 for row in live}  # the pass itself gives one more
        proposed = self.proposer.propose({row: self.tokens[row] for row in live}, room)
        pieces = {row: [self.tokens[row][-1], *proposed[row]] for row in live}
        for row, hidden in zip(pieces, self.texts.read(pieces), strict=True):
            self.passes[row] += 1
            self.accept(row, hidden, proposed[row])
            self.texts.keep(row, len(self.tokens[row]) - 1)

    def accept(self, row: int, hidden: Tensor, proposed: Sequence[int]) -> None:
        """Write what the model chooses after each token of a pass (T,D), as long as that is what was proposed."""
        for at, guess in enumerate([*proposed, None]):
            first = at % self.block
            if first == 0:
                scores = self.texts.scores(hidden[at : at + self.block])  # (block,V)
                raw = scores.to(torch.promote_types(scores.dtype, torch.float32))
                self.dtype = raw.dtype
            one, count = raw[first : first + 1], len(self.written[row])
            mine = None if self.choice.guides is None else [self.choice.guides[row]]
            token = int(self.choice.choose(one, slice(row, row + 1), count, mine))
            norm, top = float(one.logsumexp(-1)), None
            if self.settings.logprobs:
                best = one[0].topk(self.settings.logprobs)
                pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
                top = {number: value - norm for number, value in pairs}
            self.write(row, NewToken(token, float(one[0, token]) - norm, top))
            if token != guess or self.reasons[row] is not None:
                return

    def write(self, row: int, new: NewToken) -> None:
        """One more token of one row, and its end where this was the last."""
        text = self.written[row]
        self.choice.ids[row, self.choice.prompt + len(text)] = new.token
        self.tokens[row].append(new.token)
        text.append(new)
        guide = None if self.choice.guides is None else self.choice.guides[row]
        if guide is not None:
            guide.accept(new.token)
        if new.token in self.settings.ends:
            self.reasons[row] = "eos"
        elif (guide is not None and guide.over) or (
            self.stops is not None and self.stops.ends([one.token for one in text[-self.stops.tail :]])
        ):
            self.reasons[row] = "stop"
        elif len(text) == self.choice.limit:
            self.reasons[row] = "length"

    def step(self, count: int) -> Step:
        """The tokens of all rows with one number."""
        padding, device = self.settings.padding, self.choice.ids.device
        live = [len(text) > count for text in self.written]
        ended = NewToken(padding, 0.0, dict.fromkeys(range(-self.settings.logprobs, 0), 0.0))
        news = [text[count] if on else ended for text, on in zip(self.written, live, strict=True)]
        step = Step(
            tokens=torch.tensor([new.token for new in news], device=device),
            logprobs=torch.tensor([new.logprob for new in news], dtype=self.dtype, device=device),
            live=torch.tensor(live, device=device),
        )
        if not self.settings.logprobs:
            return step
        tops = [new.top or {} for new in news]
        best = torch.tensor([list(top) for top in tops], device=device).clamp(min=0)
        shares = torch.tensor([list(top.values()) for top in tops], dtype=self.dtype, device=device)
        return replace(step, top_tokens=best, top_logprobs=shares)

    def result(self) -> Generated:
        """The texts as far as they have come."""
        ids = self.choice.ids[:, : self.choice.prompt + self.count].clone()
        for row, text in enumerate(self.written):
            ids[row, self.choice.prompt + len(text) :] = self.settings.padding  # what was only tried
        reasons: list[Reason] = [
            why if why is not None and len(text) <= self.count else "length" for why, text in self.rows()
        ]
        passes = torch.tensor(self.passes, device=ids.device)
        return generated(ids, self.choice.prompt, self.steps, reasons, passes)

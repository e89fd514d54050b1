"""Speculative decoding: cheap draft tokens are verified by the model in one pass.

The next token is a function of the model's logits, the tokens so far, the seed and the step number: noise is not a
stream of numbers but f(seed, step, token), and a sample is the argmax of logits + noise. So the model's token at every
position of a draft is known after one pass over it, sampled or greedy alike, and the rule is simple: a draft token is
accepted if it is the token the model samples there itself, and the first that is not is replaced by the model's. The
output then equals decoding without drafts token for token, not only in distribution; logits processors, guides, end ids
and stop strings see each position with the tokens before it. (Passes of other shapes round differently, so of two
nearly tied tokens the other may win, as between any two batch sizes.)

Draft tokens come from the sequence itself, if its newest tokens occurred before (`Lookup`), or from a smaller model
(`Draft`), which samples with the same processors and the same noise: if its logits are close to the model's, the same
token wins in both far more often than with independent sampling. The draft "int8" is the model itself quantised to 8
bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from anyformer.generation.cache.store import extend_in_chunks
from anyformer.generation.config import Generation
from anyformer.generation.prompts import GenerationInputs, decoder_of, vocabulary_of
from anyformer.generation.proposers import CHUNK, add_sequences, make_int8_draft, make_proposer
from anyformer.generation.result import Generated, NewToken, Reason, Step, collect_steps
from anyformer.generation.runners.compiled import Compiled
from anyformer.generation.runners.eager import eval_mode
from anyformer.generation.sampler import Guides, Sampler
from anyformer.kernels.cpu import FEW


class Speculation:
    """As `Decoding`: iterate for one `Step` per token, then call `result()`. Rows advance independently."""

    def __init__(
        self, model: Any, inputs: GenerationInputs, settings: Generation, draft: Any, guides: Guides | None
    ) -> None:
        itself = draft == "int8"
        if itself:
            model, draft = make_int8_draft(model)
        self.model, self.settings, self.stops = model, settings, inputs.stops
        vocab = vocabulary_of(decoder_of(model.spec).embed, "the model")
        self.sampler = Sampler(settings, inputs.ids, inputs.mask, inputs.new, vocab, guides)
        rows = len(self.sampler.ids)
        copies = settings.num_return_sequences
        self.tokens = [list(prompt) for prompt in inputs.prompts for _ in range(copies)]  # prompt and output
        self.store = add_sequences(model, inputs, copies)
        self.proposer = make_proposer(model, draft, inputs, self.sampler, settings, self.store if itself else None)
        chunk = settings.prefill_chunk_size or CHUNK
        extend_in_chunks(self.store, {row: tokens[:-1] for row, tokens in enumerate(self.tokens)}, chunk)
        self.outputs: list[list[NewToken]] = [[] for _ in range(rows)]
        self.reasons: list[Reason | None] = [None] * rows
        self.passes = [0] * rows
        self.steps: list[Step] = []
        self.count, self.finished, self.dtype = 0, False, torch.float32
        # Logits of a large vocabulary cost a CPU as much as some layers: compute them in small blocks, as most may not
        # be needed, except in our C++, where several cost hardly more than one.
        few = FEW if isinstance(model, Compiled) and model.is_cpp else 3
        self.block = few if self.sampler.ids.device.type == "cpu" else inputs.new + 1

    def __iter__(self) -> Iterator[Step]:
        while not self.finished:
            yield self.advance()

    @torch.no_grad()
    def advance(self) -> Step:
        """The next token of every row, which is often available already."""
        with eval_mode(self.model):
            while any(why is None and len(new) <= self.count for why, new in self.rows()):
                self.verify_proposals()
        step = self.make_step(self.count)
        self.steps.append(step)
        self.count += 1
        self.finished = all(why is not None and len(new) <= self.count for why, new in self.rows())
        return step

    def rows(self) -> Iterator[tuple[Reason | None, list[NewToken]]]:
        return zip(self.reasons, self.outputs, strict=True)

    def verify_proposals(self) -> None:
        """Verify in one pass the newest token and the draft tokens of every unfinished row."""
        live = [row for row, why in enumerate(self.reasons) if why is None]
        room = {row: self.sampler.limit - len(self.outputs[row]) - 1 for row in live}  # the pass itself yields one more
        proposed = self.proposer.propose({row: self.tokens[row] for row in live}, room)
        pieces = {row: [self.tokens[row][-1], *proposed[row]] for row in live}
        for row, hidden in zip(pieces, self.store.extend(pieces), strict=True):
            self.passes[row] += 1
            self.accept(row, hidden, proposed[row])
            self.store.truncate(row, len(self.tokens[row]) - 1)

    def accept(self, row: int, hidden: Tensor, proposed: Sequence[int]) -> None:
        """Append the model's samples from the hidden states (T,D) of a pass, up to the first that differs from the
        draft."""
        for at, guess in enumerate([*proposed, None]):
            first = at % self.block
            if first == 0:
                logits = self.store.logits(hidden[at : at + self.block])  # (block,V)
                raw = logits.to(torch.promote_types(logits.dtype, torch.float32))
                self.dtype = raw.dtype
            one, count = raw[first : first + 1], len(self.outputs[row])
            mine = None if self.sampler.guides is None else [self.sampler.guides[row]]
            token = int(self.sampler.sample(one, slice(row, row + 1), count, mine))
            norm, top = float(one.logsumexp(-1)), None
            if self.settings.logprobs:
                best = one[0].topk(self.settings.logprobs)
                pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
                top = {number: value - norm for number, value in pairs}
            self.append(row, NewToken(token, float(one[0, token]) - norm, top))
            if token != guess or self.reasons[row] is not None:
                return

    def append(self, row: int, new: NewToken) -> None:
        """Append a token to one row, and finish the row if it was the last."""
        text = self.outputs[row]
        self.sampler.ids[row, self.sampler.prompt + len(text)] = new.token
        self.tokens[row].append(new.token)
        text.append(new)
        guide = None if self.sampler.guides is None else self.sampler.guides[row]
        if guide is not None:
            guide.accept(new.token)
        if new.token in self.settings.ends:
            self.reasons[row] = "eos"
        elif (guide is not None and guide.over) or (
            self.stops is not None and self.stops.ends([one.token for one in text[-self.stops.tail :]])
        ):
            self.reasons[row] = "stop"
        elif len(text) == self.sampler.limit:
            self.reasons[row] = "length"

    def make_step(self, count: int) -> Step:
        """The tokens of all rows at one index."""
        padding, device = self.settings.padding, self.sampler.ids.device
        live = [len(text) > count for text in self.outputs]
        ended = NewToken(padding, 0.0, dict.fromkeys(range(-self.settings.logprobs, 0), 0.0))
        news = [text[count] if on else ended for text, on in zip(self.outputs, live, strict=True)]
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
        """The sequences so far."""
        ids = self.sampler.ids[:, : self.sampler.prompt + self.count].clone()
        for row, text in enumerate(self.outputs):
            ids[row, self.sampler.prompt + len(text) :] = self.settings.padding  # clear draft tokens
        reasons: list[Reason] = [
            why if why is not None and len(text) <= self.count else "length" for why, text in self.rows()
        ]
        passes = torch.tensor(self.passes, device=ids.device)
        return collect_steps(ids, self.sampler.prompt, self.steps, reasons, passes)

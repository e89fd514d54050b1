"""Random schedules over a store: sequences are added, prefilled, stepped and freed, and the logits that came of it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from anyformer.core.model import Seq2Seq
from anyformer.generation.cache.eager_store import EagerStore
from anyformer.generation.cache.store import SequenceStore
from anyformer.generation.prompts import decoder_of
from anyformer.generation.runners.eager import device_of


@dataclass
class Text:
    """One text on its way through a store."""

    prompt: list[int]
    source: list[int] | None
    scope: str
    row: int = -1
    read: int = 0
    cached: int = 0
    written: list[int] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)


def run(rows: SequenceStore, model: Any, seed: int, *, moves: int = 40, longest: int = 9) -> list[Text]:
    """A schedule that depends on the seed alone: prompts share beginnings, rows pause, end and come again."""
    random_ = random.Random(seed)
    vocab, pair = decoder_of(model.spec).embed.vocabulary[0], isinstance(model.spec, Seq2Seq)
    stems = [[random_.randrange(vocab) for _ in range(random_.randrange(2, longest))] for _ in range(2)]
    sources = [[random_.randrange(vocab) for _ in range(n)] for n in (1, 5, 3)]
    open_: list[Text] = []
    done: list[Text] = []
    for move_number in range(10 * moves):
        if move_number >= moves and sum(bool(text.logits) for text in [*done, *open_]) > 2:
            break
        reading = [text for text in open_ if text.read < len(text.prompt)]
        writing = [text for text in open_ if text.read == len(text.prompt)]
        can = {"open": len(open_) < rows.capacity, "read": bool(reading), "step": bool(writing), "close": bool(writing)}
        often = {"open": 3, "read": 3, "step": 4, "close": 1}
        move = random_.choice([move for move, may in can.items() if may for _ in range(often[move])])
        if move == "open":
            stem = random_.choice(stems)
            prompt = stem[: random_.randrange(1, len(stem) + 1)]
            prompt = prompt + [random_.randrange(vocab) for _ in range(random_.randrange(3))]
            if done and random_.random() < 0.4:  # a conversation goes on
                before = random_.choice(done)
                prompt = before.prompt + before.written + [random_.randrange(vocab)]
            text = Text(prompt, random_.choice(sources) if pair else None, random_.choice("ab"))
            text.row, text.cached = rows.add(text.prompt, source=text.source, scope=text.scope)
            text.read = text.cached
            open_.append(text)
        elif move == "read":
            some = random_.sample(reading, random_.randrange(1, len(reading) + 1))
            pieces = {}
            for text in some:
                left = len(text.prompt) - text.cached  # cut where the prompt says, wherever this row came in
                stop = min(len(text.prompt), text.read + random_.randrange(left // 2 + 1, left + 1))
                pieces[text.row] = text.prompt[text.read : stop]
            for text, hidden in zip(some, rows.extend(pieces), strict=True):
                assert hidden.shape[0] == len(pieces[text.row])
                text.read += len(pieces[text.row])
                if text.read == len(text.prompt):
                    text.logits.append(rows.logits(hidden[-1:])[0])
        elif move == "step":
            some = random_.sample(writing, random_.randrange(1, len(writing) + 1))
            some = writing if random_.random() < 0.6 else some
            tokens = torch.tensor([int(text.logits[-1].argmax()) for text in some], device=device_of(model))
            found = rows.step([text.row for text in some], tokens)
            for text, token, scores in zip(some, tokens.tolist(), found, strict=True):
                text.written.append(token)
                text.logits.append(scores)
        else:
            text = random_.choice(writing if writing and random_.random() < 0.8 else open_)
            rows.free(text.row, keep=random_.random() < 0.8)
            open_.remove(text)
            if text.logits:
                done.append(text)
    return [*done, *(text for text in open_ if text.logits)]


def alone(model: Any, text: Text) -> list[Tensor]:
    """The scores of one text by itself, from the store that defines what is right."""
    rows = lone_store(model, capacity=1)
    row = rows.add(text.prompt, source=text.source).number
    found = [rows.logits(rows.extend({row: text.prompt})[0][-1:])[0]]
    for token in text.written:
        found.append(rows.step([row], torch.tensor([token], device=device_of(model)))[0])
    return found


def worst(model: Any, texts: list[Text]) -> float:
    """The largest difference of any score from that of the text alone."""
    found = 0.0
    for text in texts:
        for got, right in zip(text.logits, alone(model, text), strict=True):
            found = max(found, float((got - right).abs().max()))
    return found


def lone_store(model: Any, *, capacity: int = 8, limit: int | None = None) -> EagerStore:
    """Every sequence by itself: what the other stores must agree with."""
    return EagerStore(model, capacity=capacity, limit=limit, batched=False, prefix_cache=False)

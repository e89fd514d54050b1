"""Who answers in a chat: a model in this process."""

from __future__ import annotations

import math
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from anyformer.commands.conversation import Conversation
from anyformer.commands.rates import Rates
from anyformer.errors import UserError
from anyformer.log import Log

if TYPE_CHECKING:
    from anyformer.inference.predictor import Predictor

PLAIN_TOKENS = 256  # of an answer, where the model only continues a text
CONTINUES = "it continues your text"
LEAST = 64  # tokens that an answer should have room for
FORGOTTEN = "the conversation no longer fits the context: the oldest turns are left out"


@dataclass
class Reply:
    """One answer and what is known of it."""

    rates: Rates = field(default_factory=Rates)
    text: str = ""
    finish: str = ""
    pieces: list[tuple[str, float | None]] = field(default_factory=list)  # pieces of text with their probability

    def add(self, piece: str, logprob: float | None) -> str:
        """A piece of text has come."""
        self.text += piece
        self.pieces.append((piece, None if logprob is None else math.exp(min(0.0, logprob))))
        return piece


class Talker(Protocol):
    """Something that answers."""

    name: str
    plain: bool  # it was not trained to chat
    does: str  # what it does then

    def answer(self, conversation: Conversation, answer: Reply, log: Log) -> Generator[str, None, None]:
        """Pieces of the answer as they come; those who stop listening have stopped it."""

    def close(self) -> None:
        """No more questions."""


class LocalTalker:
    """A model opened here. What one turn has read, the next one need not read again."""

    def __init__(self, predictor: Predictor, folder: Path) -> None:
        from anyformer.core.model import Seq2Seq
        from anyformer.engine.engine import Engine
        from anyformer.generation.cache.open_store import open_serving_store
        from anyformer.heads import LM
        from anyformer.inference.opening import best_of
        from anyformer.serving.chat_template import PlainTemplate, open_chat_template
        from anyformer.serving.detokenizer import Detokenizer

        if predictor.head_kind() is not LM:
            raise UserError(
                "this model writes no text", where=str(folder), fix="give a causal or encoder-decoder model"
            )
        if predictor.reads_images():
            fix = f"anyformer generate {folder} --image FILE"
            raise UserError("this model writes about images and does not chat", where=str(folder), fix=fix)
        self.predictor, self.name = predictor, folder.name or str(folder)
        self.tokenizer = predictor.require_tokenizer()
        self.reader = Detokenizer(self.tokenizer.target)
        self.form = open_chat_template(best_of(folder), self.tokenizer)
        self.plain = isinstance(self.form, PlainTemplate)
        self.pair = isinstance(predictor.spec, Seq2Seq)
        self.does = "it answers each line by itself" if self.pair else CONTINUES
        self.store = open_serving_store(predictor.model, capacity=1)
        self.engine = Engine(self.store, text_of=self.tokenizer.target.decode, queue_tokens=2 * self.store.limit + 1)
        self.engine.start()

    def answer(self, conversation: Conversation, answer: Reply, log: Log) -> Generator[str, None, None]:
        """Pieces of the answer, whole characters each."""
        from anyformer.engine.engine import stream_tokens
        from anyformer.serving.detokenizer import TextPieces

        settings = self.settings(conversation)
        tokens, source = self.prompt(conversation, settings.max_new_tokens, log)
        answer.rates = Rates(len(tokens if source is None else source))
        pieces = TextPieces(self.reader, () if self.pair else tokens)
        waiting = 0.0  # log-probability of tokens whose characters are not whole yet

        def finish(reason: str) -> None:
            answer.finish = reason

        with closing(stream_tokens(self.engine, tokens, settings, source, on_finish=finish)) as events:
            for event in events:
                answer.rates.token()
                waiting += event.logprob
                piece = pieces.add([event.token])
                if piece:
                    yield answer.add(piece, waiting)
                    waiting = 0.0
        rest = pieces.end()
        if rest:
            yield answer.add(rest, waiting)

    def settings(self, conversation: Conversation) -> Any:
        """The folder's settings with those of the conversation."""
        from anyformer.inference.decoding_settings import with_settings

        asked: dict[str, Any] = dict(conversation.settings)
        if "temperature" in asked or "top_p" in asked or "top_k" in asked or "min_p" in asked:
            asked["do_sample"] = asked.get("temperature", 1.0) > 0
        chosen = with_settings(self.predictor.defaults, asked)
        changes: dict[str, Any] = {"num_beams": 1, "num_return_sequences": 1, "early_stopping": False}
        if self.plain and chosen.max_new_tokens is None and not self.pair:
            changes["max_new_tokens"] = PLAIN_TOKENS  # a text without an end would fill the context
        if not chosen.ends and self.tokenizer.eos is not None:
            changes["eos_token_id"] = self.tokenizer.eos
        return replace(chosen, **changes)

    def prompt(self, conversation: Conversation, new: int | None, log: Log) -> tuple[list[int], list[int] | None]:
        """The tokens to read, after leaving out what no longer fits."""
        if self.pair:  # an encoder-decoder answers each question by itself
            start = self.predictor.defaults.start_token
            if start is None and self.predictor.preprocess is not None:
                start = self.predictor.preprocess.start
            if start is None:
                from anyformer.generation.config import no_start_token

                raise no_start_token(self.name, "add it to its generation_config.json")
            return [start], self.tokenizer.encode(conversation.turns[-1]["content"], safe=True)
        room = self.store.limit - min(new or LEAST, max(1, self.store.limit // 4))
        told = False
        while True:
            ids = self.ids(conversation)
            if len(ids) <= room:
                return ids, None
            if not conversation.forget_oldest():
                what = f"{len(ids):,} tokens do not fit a context of {self.store.limit:,}"
                raise UserError(what, fix="say it shorter")
            if not told:
                log(FORGOTTEN)
                told = True

    def ids(self, conversation: Conversation) -> list[int]:
        """Tokens of the conversation as the model reads it; without a template it is one text."""
        if not self.plain:
            return self.form.ids(self.tokenizer, conversation.turns)
        ids = self.tokenizer.encode(conversation.as_text(), safe=True)
        if not ids:
            raise UserError("nothing to continue", fix="write at least one character")
        return ids

    def close(self) -> None:
        """Let go of the model."""
        self.engine.stop()
        self.form.close()

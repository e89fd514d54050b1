"""Chat backend: a model in this process."""

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

PLAIN_TOKENS = 256  # answer limit of a model that only continues text
CONTINUES = "it continues your text"
LEAST = 64  # tokens reserved for an answer
FORGOTTEN = "the conversation no longer fits the context: the oldest turns are left out"


@dataclass
class Reply:
    """One answer and its statistics."""

    rates: Rates = field(default_factory=Rates)
    text: str = ""
    finish: str = ""
    pieces: list[tuple[str, float | None]] = field(default_factory=list)  # pieces of text with their probability

    def add(self, piece: str, logprob: float | None) -> str:
        """Append a piece of text."""
        self.text += piece
        self.pieces.append((piece, None if logprob is None else math.exp(min(0.0, logprob))))
        return piece


class Talker(Protocol):
    """Protocol of a chat backend."""

    name: str
    plain: bool  # not trained to chat
    does: str  # what it does then

    def answer(self, conversation: Conversation, answer: Reply, log: Log) -> Generator[str, None, None]:
        """Stream the answer; closing the iterator stops generation."""

    def close(self) -> None:
        """Release resources."""


class LocalTalker:
    """A model in this process; the KV cache of a turn is reused by the next one."""

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
        """Stream the answer in pieces of whole characters."""
        from anyformer.engine.engine import stream_tokens
        from anyformer.serving.detokenizer import TextPieces

        settings = self.settings(conversation)
        tokens, source = self.prompt(conversation, settings.max_new_tokens, log)
        answer.rates = Rates(len(tokens if source is None else source))
        pieces = TextPieces(self.reader, () if self.pair else tokens)
        waiting = 0.0  # log-probability of tokens whose characters are incomplete

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
        """The folder's generation settings, overridden by the conversation's."""
        from anyformer.inference.decoding_settings import with_settings

        asked: dict[str, Any] = dict(conversation.settings)
        if "temperature" in asked or "top_p" in asked or "top_k" in asked or "min_p" in asked:
            asked["do_sample"] = asked.get("temperature", 1.0) > 0
        chosen = with_settings(self.predictor.defaults, asked)
        changes: dict[str, Any] = {"num_beams": 1, "num_return_sequences": 1, "early_stopping": False}
        if self.plain and chosen.max_new_tokens is None and not self.pair:
            changes["max_new_tokens"] = PLAIN_TOKENS  # without a limit, a text without an end would fill the context
        if not chosen.ends and self.tokenizer.eos is not None:
            changes["eos_token_id"] = self.tokenizer.eos
        return replace(chosen, **changes)

    def prompt(self, conversation: Conversation, new: int | None, log: Log) -> tuple[list[int], list[int] | None]:
        """The prompt tokens, after dropping old messages that do not fit."""
        if self.pair:  # an encoder-decoder answers each question separately
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
        """Token ids of the conversation by the chat template; without one it is a single text."""
        if not self.plain:
            return self.form.ids(self.tokenizer, conversation.turns)
        ids = self.tokenizer.encode(conversation.as_text(), safe=True)
        if not ids:
            raise UserError("nothing to continue", fix="write at least one character")
        return ids

    def close(self) -> None:
        """Release the model."""
        self.engine.stop()
        self.form.close()

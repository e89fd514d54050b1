"""The served model with its name, context length, detokenizer and chat template."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from anyformer.core.model import Model, Seq2Seq
from anyformer.embeds import Tokens
from anyformer.generation import Generation
from anyformer.generation.config import no_start_token
from anyformer.generation.guide import Guide
from anyformer.heads import LM
from anyformer.inference.decoding_settings import changed_settings
from anyformer.inference.predictor import Predictor
from anyformer.serving.chat_template import ChatTemplate, PlainTemplate
from anyformer.serving.detokenizer import Detokenizer
from anyformer.serving.error_responses import HTTPError
from anyformer.serving.predict_rows import takes

# The decoding settings of a folder that apply to serving: one output, token by token.
KEPT = (
    "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
    "no_repeat_ngram_size", "suppress_tokens", "renormalize_logits", "pad_token_id", "bos_token_id",
    "decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id",
)  # fmt: skip


@dataclass
class ServedModel:
    """A named model."""

    predictor: Predictor
    name: str
    limit: int | None = None  # context length in tokens; None if the model generates no text
    chat: ChatTemplate = field(default_factory=PlainTemplate)
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def generates(self) -> bool:
        """Whether it generates text."""
        return self.limit is not None

    @property
    def is_seq2seq(self) -> bool:
        """Whether it is an encoder-decoder, whose encoder reads the prompt."""
        return isinstance(self.predictor.spec, Seq2Seq)

    @cached_property
    def reader(self) -> Detokenizer:
        """The detokenizer."""
        return Detokenizer(self.predictor.require_tokenizer().target)

    @cached_property
    def longest_token(self) -> int:
        """Length of the longest token, to bound a text's number of tokens from below."""
        return max((len(raw) for raw in self.predictor.require_tokenizer().spelling[0] if raw is not None), default=1)

    @property
    def source_limit(self) -> int | None:
        """Maximal prompt tokens."""
        return self.predictor.spec.encoder.embed.limit if self.is_seq2seq else self.limit

    @cached_property
    def settings(self) -> Generation:
        """The folder's decoding settings that apply to serving."""
        found = {name: value for name, value in changed_settings(self.predictor.defaults).items() if name in KEPT}
        ends = self.predictor.defaults.ends
        tokenizer = self.predictor.tokenizer
        if not ends and tokenizer is not None and tokenizer.eos is not None:
            ends = (tokenizer.eos,)
        return Generation.from_settings(found | {"eos_token_id": ends, "do_sample": True})

    @cached_property
    def vocabulary(self) -> int:
        """The vocabulary size."""
        spec = self.predictor.spec.decoder if self.is_seq2seq else self.predictor.spec
        return spec.embed.vocabulary[0]

    def start_tokens(self) -> list[int]:
        """The first tokens of an encoder-decoder's output."""
        first = self.predictor.defaults.start_token
        if first is None:
            raise no_start_token("", "add it to generation_config.json of the folder")
        return [first]

    def check_name(self, asked: str | None) -> None:
        """Raise 404 for any other model name."""
        if asked is not None and asked != self.name:
            raise HTTPError(404, f"the model {asked[:80]!r} is not here; this server has {self.name!r}", param="model",
                          code="model_not_found")  # fmt: skip

    def check_generates(self) -> None:
        """Raise 400 if the model generates no text."""
        if not self.generates:
            raise HTTPError(400, "this model continues no text; ask /v1/predict or /v1/embeddings", code="unsupported")

    def card(self) -> dict[str, Any]:
        """The entry of /v1/models."""
        facts: dict[str, Any] = {"id": self.name, "object": "model", "created": self.created, "owned_by": "anyformer"}
        facts["writes"] = self.generates
        facts["context"] = self.limit
        facts["chat_template"] = self.chat.name if self.generates else None
        facts["takes"] = takes(self.predictor)
        facts["parameters"] = sum(p.numel() for p in self.predictor.model.parameters())
        return facts

    def make_guide(self, kind: str, rule: Any) -> Guide:
        """A new guide for one sequence."""
        from anyformer.generation.grammar import json_guide, regex_guide

        tokenizer, ends = self.predictor.require_tokenizer().target, self.settings.ends
        return regex_guide(tokenizer, rule, ends) if kind == "regex" else json_guide(tokenizer, rule, ends)


def can_generate(predictor: Predictor) -> bool:
    """Whether a model generates text: a language-model head, and a causal stack."""
    spec = predictor.spec
    if not isinstance(spec, Model | Seq2Seq) or not isinstance(spec.head, LM):
        return False
    if isinstance(spec, Seq2Seq) and not isinstance(spec.encoder.embed, Tokens):
        return False  # its input is not only text: served by /v1/predict
    decoder = spec.decoder if isinstance(spec, Seq2Seq) else spec
    return decoder.stack.causal and decoder.embed.vocabulary is not None


def override_settings(settings: Generation, given: dict[str, Any]) -> Generation:
    """The folder's settings overridden by a request's; None keeps the folder's."""
    chosen = {name: value for name, value in given.items() if value is not None}
    if chosen.get("top_k") == 0:
        chosen["top_k"] = None
    if chosen.get("temperature") == 0:
        chosen["do_sample"] = False
    return replace(settings, **chosen)

"""What is served: a model, its name, its context, its detokenizer and its chat template."""

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

# Of a folder's decoding settings those that make sense for one text, token by token.
KEPT = (
    "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
    "no_repeat_ngram_size", "suppress_tokens", "renormalize_logits", "pad_token_id", "bos_token_id",
    "decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id",
)  # fmt: skip


@dataclass
class ServedModel:
    """One model with a name."""

    predictor: Predictor
    name: str
    limit: int | None = None  # tokens of the context; None where the model generates no text
    chat: ChatTemplate = field(default_factory=PlainTemplate)
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def generates(self) -> bool:
        """Whether it generates text."""
        return self.limit is not None

    @property
    def is_seq2seq(self) -> bool:
        """Whether it is an encoder-decoder: prompts are read by the encoder."""
        return isinstance(self.predictor.spec, Seq2Seq)

    @cached_property
    def reader(self) -> Detokenizer:
        """What turns new tokens into text."""
        return Detokenizer(self.predictor.require_tokenizer().target)

    @cached_property
    def longest_token(self) -> int:
        """Characters of the longest token: no text with more than that for each place in the context can fit."""
        return max((len(raw) for raw in self.predictor.require_tokenizer().spelling[0] if raw is not None), default=1)

    @property
    def source_limit(self) -> int | None:
        """Tokens a prompt may have, before anything is generated."""
        return self.predictor.spec.encoder.embed.limit if self.is_seq2seq else self.limit

    @cached_property
    def settings(self) -> Generation:
        """The folder's own decoding settings, as far as they are about single tokens."""
        found = {name: value for name, value in changed_settings(self.predictor.defaults).items() if name in KEPT}
        ends = self.predictor.defaults.ends
        tokenizer = self.predictor.tokenizer
        if not ends and tokenizer is not None and tokenizer.eos is not None:
            ends = (tokenizer.eos,)
        return Generation.from_settings(found | {"eos_token_id": ends, "do_sample": True})

    @cached_property
    def vocabulary(self) -> int:
        """How many ids the model knows."""
        spec = self.predictor.spec.decoder if self.is_seq2seq else self.predictor.spec
        return spec.embed.vocabulary[0]

    def start_tokens(self) -> list[int]:
        """What an encoder-decoder's output begins with."""
        first = self.predictor.defaults.start_token
        if first is None:
            raise no_start_token("", "add it to generation_config.json of the folder")
        return [first]

    def check_name(self, asked: str | None) -> None:
        """Only this model is here."""
        if asked is not None and asked != self.name:
            raise HTTPError(404, f"the model {asked[:80]!r} is not here; this server has {self.name!r}", param="model",
                          code="model_not_found")  # fmt: skip

    def check_generates(self) -> None:
        """Whether it generates text, else an error response."""
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
        """A fresh guide for one sequence."""
        from anyformer.generation.grammar import json_guide, regex_guide

        tokenizer, ends = self.predictor.require_tokenizer().target, self.settings.ends
        return regex_guide(tokenizer, rule, ends) if kind == "regex" else json_guide(tokenizer, rule, ends)


def can_generate(predictor: Predictor) -> bool:
    """Whether a model generates text: a language-model head, and a causal stack."""
    spec = predictor.spec
    if not isinstance(spec, Model | Seq2Seq) or not isinstance(spec.head, LM):
        return False
    if isinstance(spec, Seq2Seq) and not isinstance(spec.encoder.embed, Tokens):
        return False  # what it reads is not text alone: its rows come by /v1/predict
    decoder = spec.decoder if isinstance(spec, Seq2Seq) else spec
    return decoder.stack.causal and decoder.embed.vocabulary is not None


def override_settings(settings: Generation, given: dict[str, Any]) -> Generation:
    """The folder's settings with a request's on top; what is None there is left as it is."""
    token_name = {name: value for name, value in given.items() if value is not None}
    if token_name.get("top_k") == 0:
        token_name["top_k"] = None
    if token_name.get("temperature") == 0:
        token_name["do_sample"] = False
    return replace(settings, **token_name)

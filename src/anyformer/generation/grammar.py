"""Constrained decoding: output that matches a JSON schema, a regular expression or one of a few texts.

The grammar is evaluated by the library llguidance, which works on the bytes of each token of the vocabulary. Before
every token a guide masks the tokens that may not follow, so that whatever the model and the settings, a completed
output matches, and a truncated one is a prefix of a match. Nothing is fetched: a schema with remote references is
rejected. Sizes are bounded, and so is the work per token.
"""

from __future__ import annotations

import copy
import json
import re
import threading
import time
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from anyformer.errors import UserError
from anyformer.extras import require
from anyformer.generation.grammar_checks import as_list, check_length, check_parts, short

LONGEST_SCHEMA, LONGEST_PATTERN, MOST_CHOICES = 65_536, 4_096, 1_024  # characters, characters, texts
PATIENCE = 0.25  # seconds to locate an error in a schema
KEPT = 32  # cached compiled grammars per vocabulary
BLANK = " ?"  # between the parts of JSON: at most one space, or a model could emit spaces for ever


class SpelledTokenizer(Protocol):
    """What a guide needs of a tokenizer."""

    @property
    def spelling(self) -> tuple[list[bytes | None], bool]:
        """The bytes of each token (None for special ones), and whether decoding drops a leading space."""


def json_guide(tokenizer: SpelledTokenizer, schema: Mapping[str, Any] | bool | str, ends: Sequence[int]) -> Grammar:
    """A guide for JSON that matches a schema, given as a dictionary or as JSON; `ends` are the end-of-sequence ids."""
    if isinstance(schema, str):
        check_length(schema, LONGEST_SCHEMA, "the schema", "JSON schema")
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise UserError(f"the schema is not JSON ({short(error)})", where="JSON schema") from None
    if not isinstance(schema, Mapping | bool):
        raise UserError(f"a schema is an object, not {type(schema).__name__}", where="JSON schema",
                        fix='such as {"type": "object"}')  # fmt: skip
    if schema is False:
        raise UserError("nothing obeys the schema false", where="JSON schema", fix="use true for any JSON")
    check_parts(schema)
    rules = dict(schema) if isinstance(schema, Mapping) else {}
    # Set last, so that a schema cannot override it.
    rules["x-guidance"] = {"whitespace_flexible": False, "whitespace_pattern": BLANK, "lenient": False,
                           "coerce_one_of": False, "item_separator": ",", "key_separator": ":"}  # fmt: skip
    try:
        written = json.dumps(rules, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise UserError(f"the schema is not JSON ({short(error)})", where="JSON schema") from None
    check_length(written, LONGEST_SCHEMA, "the schema", "JSON schema")
    vocabulary = grammar_vocabulary(tokenizer)
    try:
        return Grammar(vocabulary, f"%json {written}", "JSON schema", ends)
    except UserError as error:
        place = find_place(rules, error.what, vocabulary)
        raise UserError(error.what, where=f"JSON schema {place}".strip()[:120]) from None


def regex_guide(tokenizer: SpelledTokenizer, pattern: str, ends: Sequence[int]) -> Grammar:
    """A guide for texts that a regular expression matches in full; \\d, \\w and \\s are ASCII only.

    Look-around and back-references are not supported.
    """
    if not isinstance(pattern, str) or not pattern:
        raise UserError("no pattern given", where="regex", fix="give one, such as [0-9]+")
    check_length(pattern, LONGEST_PATTERN, "the pattern", "regex")
    vocabulary = grammar_vocabulary(tokenizer)
    from llguidance import regex_to_lark

    try:
        with warnings.catch_warnings(record=True) as doubts:
            warnings.simplefilter("always", FutureWarning)
            re.compile(pattern)  # its errors have the position
        written = regex_to_lark(pattern, "dws")
    except (re.error, RecursionError, OverflowError, ValueError) as error:
        raise UserError(f"the pattern is not valid: {short(error)}", where="regex") from None
    for doubt in doubts:  # nested sets mean different things in `re` and in llguidance
        if "ossible" in str(doubt.message):
            raise UserError(f"the pattern is not clear: {short(doubt.message)}", where="regex", fix="write \\[ for [")
    return Grammar(vocabulary, f"/{written}/", "regex", ends)


def choice_guide(tokenizer: SpelledTokenizer, texts: Sequence[str], ends: Sequence[int]) -> Grammar:
    """A guide for exactly one of a few texts."""
    if isinstance(texts, str) or not texts or not all(isinstance(text, str) and text for text in texts):
        raise UserError(
            "the texts to choose from are missing", where="choices", fix='give a list, such as ["yes", "no"]'
        )
    if len(texts) > MOST_CHOICES:
        raise UserError(f"{len(texts)} texts to choose from", where="choices", fix=f"give at most {MOST_CHOICES}")
    written = " | ".join(json.dumps(text) for text in dict.fromkeys(texts))
    check_length(written, LONGEST_SCHEMA, "the list", "choices")
    return Grammar(grammar_vocabulary(tokenizer), f"({written})", "choices", ends)


def find_place(schema: Mapping[str, Any], message: str, vocabulary: Vocabulary) -> str:
    """The path in a schema that an error message comes from: the deepest part that reproduces it."""
    shared = {name: schema[name] for name in ("$defs", "definitions", "x-guidance") if name in schema}
    place, part, until = "", schema, time.monotonic() + PATIENCE
    while True:
        inner = {f"/{name}": value for name, value in part.items()} | {
            f"/{name}/{key}": one
            for name, value in part.items()
            for key, one in (value.items() if isinstance(value, Mapping) else enumerate(as_list(value)))
        }
        for path, one in inner.items():
            if time.monotonic() > until:
                return place
            if isinstance(one, Mapping) and path not in ("/x-guidance", "/$defs", "/definitions"):
                if vocabulary.describe_error(f"%json {json.dumps(dict(one) | shared)}") == message:
                    place, part = place + path, one
                    break
        else:
            return place


class Grammar:
    """A grammar with the matching state of one output: a `Guide`."""

    def __init__(self, vocabulary: Vocabulary, body: str, where: str, ends: Sequence[int]) -> None:
        self.vocabulary, self.where = vocabulary, where
        self.ends = [one for one in ends if one < vocabulary.size]
        self.matcher = vocabulary.compile_grammar(body, where)

    def mask(self) -> Tensor:
        """Mask of allowed next tokens, bool (V,) on the CPU; includes end ids if the output may end here."""
        bits = np.frombuffer(self.matcher.compute_bitmask(), dtype=np.uint8)
        if self.matcher.is_error():
            raise UserError(short(self.matcher.get_error()), where=self.where)
        allowed = np.unpackbits(bits, count=self.vocabulary.size, bitorder="little").view(bool)
        allowed[self.ends] = self.matcher.is_accepting()
        return torch.from_numpy(allowed)

    def accept(self, token: int) -> None:
        """Advance by a sampled token."""
        if token in self.ends:
            return
        if not self.matcher.consume_token(token):
            raise UserError(f"token {token} does not fit ({short(self.matcher.get_error())})", where=self.where)

    @property
    def over(self) -> bool:
        """Whether the output is complete and must end."""
        return self.matcher.is_stopped() and not self.matcher.is_error()

    def fork(self) -> Grammar:
        """An independent copy."""
        twin = copy.copy(self)
        twin.matcher = self.matcher.deep_copy()
        return twin


class Vocabulary:
    """llguidance's view of one tokenizer, with an LRU cache of grammars compiled for it."""

    def __init__(self, tokenizer: SpelledTokenizer) -> None:
        from llguidance import LLTokenizer, TokenizerWrapper

        spelled, self.drops_blank = tokenizer.spelling
        self.size = len(spelled)
        self.known = LLTokenizer(TokenizerWrapper(TokenIds(spelled)))
        self.grammars: OrderedDict[str, Any] = OrderedDict()
        self.lock = threading.Lock()

    def compile_grammar(self, body: str, where: str) -> Any:
        """A matcher in its initial state."""
        with self.lock:
            found = self.grammars.pop(body, None)
            if found is None:
                found = self.make_matcher(body)
                found.compute_bitmask()  # fail early if no first token is allowed
                if found.is_error():
                    raise UserError(short(found.get_error()), where=where)
                if len(self.grammars) >= KEPT:
                    self.grammars.popitem(last=False)
            self.grammars[body] = found
            return found.deep_copy()

    def make_matcher(self, body: str) -> Any:
        """A new matcher, in an error state if the grammar is invalid."""
        from llguidance import LLMatcher

        # No forcing: the model may choose the tokenization of prescribed text.
        blank = '" " ' if self.drops_blank else ""
        grammar = LLMatcher.grammar_from_lark(f'%llguidance {{"no_forcing": true}}\nstart: {blank}{body}')
        return LLMatcher(self.known, grammar, log_level=0, limits=limits())

    def describe_error(self, body: str) -> str:
        """The error of a grammar; empty if it is valid."""
        found = self.make_matcher(body)
        found.compute_bitmask()
        return short(found.get_error()) if found.is_error() else ""


class TokenIds:
    """A vocabulary in llguidance's format, with an extra id as its end token; we handle our own end ids."""

    def __init__(self, spelled: Sequence[bytes | None]) -> None:
        self.tokens = [*(one or b"" for one in spelled), b"<end>"]
        self.eos_token_id, self.bos_token_id = len(spelled), None
        self.special_token_ids = [len(spelled)]

    def __call__(self, text: object) -> list[int]:
        """Never used: the library tokenizes text only if a grammar forces tokens, and ours do not."""
        return []


VOCABULARIES: weakref.WeakKeyDictionary[Any, Vocabulary] = weakref.WeakKeyDictionary()
MAKING = threading.Lock()


def grammar_vocabulary(tokenizer: SpelledTokenizer) -> Vocabulary:
    """The cached `Vocabulary` of a tokenizer: building its token trie takes time."""
    require("llguidance", "constrained output needs")
    with MAKING:
        if tokenizer not in VOCABULARIES:
            VOCABULARIES[tokenizer] = Vocabulary(tokenizer)
        return VOCABULARIES[tokenizer]


def limits() -> Any:
    """Work limits per grammar and per token, in llguidance's units: about 20 ms each."""
    from llguidance import LLParserLimits

    return LLParserLimits(
        initial_lexer_fuel=200_000, step_lexer_fuel=100_000, step_max_items=20_000, max_lexer_states=50_000,
        max_grammar_size=100_000, verbose_errors=False,
    )  # fmt: skip

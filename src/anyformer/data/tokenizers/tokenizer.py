"""Tokenizers: text to token ids and back, opened from a model folder or trained on texts."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from tokenizers import AddedToken
from tokenizers import Tokenizer as Core
from torch import Tensor

from anyformer.data.tokenizers.backends import LibraryEngine, MarianEngine, Offsets, Text, TokenizerBackend
from anyformer.data.tokenizers.config import (
    ROLES,
    SETTINGS,
    content,
    extras,
    flag,
    merge_settings,
    named_tokens,
    roles_of,
)
from anyformer.data.tokenizers.files import json_if_there, there
from anyformer.data.tokenizers.folder import GENERIC, open_folder
from anyformer.data.tokenizers.formats import FORMS
from anyformer.data.tokenizers.training import Kind, add_frame, check_texts, default_special, train
from anyformer.errors import UserError

Side = Literal["left", "right"]
NO_LIMIT = 2**40  # folders have 1e30 for "no limit"
# Written anew by `save`, or specific to a machine: names of files or code.
NOT_KEPT = {
    "tokenizer_class", "auto_map", "name_or_path", "special_tokens_map_file", "tokenizer_file", "vocab_file",
    "merges_file", "source_spm", "target_spm", "added_tokens_decoder", "extra_special_tokens", "chat_template",
    "additional_special_tokens", "model_max_length", "max_len", "padding_side", "split_special_tokens", "backend",
    "is_local", "local_files_only",
}  # fmt: skip


class Tokenizer:
    """Text to token ids and back, with the facts on tokens that a model needs.

    `bos`, `eos`, `unk`, `sep`, `pad`, `cls` and `mask` are ids, or None if the tokenizer has no such token.

    >>> words = train_tokenizer(["a rose is a rose"], "char", 20)
    >>> words.decode(words.encode("a rose"))
    'a rose'
    """

    def __init__(
        self,
        engine: TokenizerBackend,
        roles: Mapping[str, str],
        settings: Mapping[str, Any],
        *,
        form: str,
        target: TokenizerBackend | None = None,
    ) -> None:
        self.engine, self.settings, self.form = engine, dict(settings), form
        self.roles = {role: token for role, token in roles.items() if engine.id_of(token) is not None}
        self.target_engine = target
        self.bos, self.eos, self.unk, self.sep, self.pad, self.cls, self.mask = (
            engine.id_of(self.roles[role]) if role in self.roles else None for role in ROLES
        )
        self.size = engine.size()
        self.safe = flag(settings, "split_special_tokens", False)
        self.padding_side = side_of(settings.get("padding_side", FORMS[form].side if form in FORMS else "right"))
        self.max_length = limit_of(settings.get("model_max_length", settings.get("max_len")))
        self.chat_template = template_of(settings.get("chat_template"))

    def __repr__(self) -> str:
        return f"Tokenizer({self.size} tokens, {self.form})"

    @property
    def core(self) -> Core:
        """The underlying `tokenizers.Tokenizer`."""
        if isinstance(self.engine, LibraryEngine):
            return self.engine.core
        raise UserError(f"a {self.form} is two sentencepiece models", fix="use encode and decode")

    @cached_property
    def target(self) -> Tokenizer:
        """The tokenizer of target texts; different from that of source texts only for Marian."""
        if self.target_engine is None:
            return self
        return Tokenizer(self.target_engine, self.roles, self.settings, form=self.form)

    @cached_property
    def spelling(self) -> Spelling:
        """The bytes of each token."""
        return spelling_of(self.engine, (self.bos, self.eos, self.unk, self.sep, self.pad, self.cls, self.mask))

    def encode(
        self, text: str, pair: str | None = None, *, special: bool = True, safe: bool | None = None
    ) -> list[int]:
        """Ids of a text, or of two texts as one sequence.

        `special` adds the model's special tokens around. `safe` parses no special tokens in the text, even if they are
        spelled out; the default is True for a tokenizer trained here, else as the folder says.
        """
        texts: list[Text] = [text if pair is None else (text, pair)]
        return self.engine.encode(texts, special=special, safe=self.safe if safe is None else safe)[0]

    def encode_batch(self, texts: Sequence[Text], *, special: bool = True, safe: bool | None = None) -> list[list[int]]:
        """Ids of each text or pair of texts, on all cores."""
        return self.engine.encode(list(texts), special=special, safe=self.safe if safe is None else safe)

    def encode_with_offsets(self, texts: Sequence[str]) -> list[tuple[list[int], Offsets]]:
        """Ids of each text without special tokens, and the character range of each token.

        >>> words = train_tokenizer(["a rose is a rose"], "word", 20)
        >>> [offsets for _, offsets in words.encode_with_offsets(["a rose"])]
        [[(0, 1), (2, 6)]]
        """
        return self.engine.encode_with_offsets(list(texts), safe=self.safe)

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """The text of the ids."""
        try:
            return self.engine.decode([int(i) for i in ids], skip_special=skip_special)
        except (OverflowError, TypeError, ValueError):
            raise UserError("ids are not whole numbers from 0", fix="give a list of token ids") from None

    def token(self, number: int) -> str:
        """The token of an id, as in the vocabulary."""
        found = self.engine.token(number) if 0 <= number < 2**31 else None
        if found is None:
            raise UserError(f"no token has id {number}", fix=f"ids go from 0 to {self.size - 1}")
        return found

    def batch(
        self,
        texts: Sequence[Text],
        *,
        side: Side | None = None,
        device: torch.device | str = "cpu",
        special: bool = True,
    ) -> tuple[Tensor, Tensor]:
        """Ids (B,T) and mask (B,T), True for tokens, padded on one side to the longest text."""
        return self.padded(self.encode_batch(texts, special=special), side=side, device=device)

    def padded(
        self, rows: Sequence[Sequence[int]], *, side: Side | None = None, device: torch.device | str = "cpu"
    ) -> tuple[Tensor, Tensor]:
        """Lists of ids as one (B,T), with a mask that is True for tokens."""
        # Padding is masked, so any id works; the eos token is the usual choice.
        fill = next((i for i in (self.pad, self.eos) if i is not None), 0)
        return pad_ids(rows, fill, side=side_of(side or self.padding_side), device=device)

    @property
    def sha256(self) -> str:
        """Hash of everything that determines the ids of a text."""
        mark = hashlib.sha256(
            json.dumps([self.form, self.roles, self.safe, self.padding_side], sort_keys=True).encode()
        )
        for name, data in sorted(self.engine.files().items()):
            mark.update(name.encode() + data)
        return mark.hexdigest()

    def save(self, folder: Path) -> None:
        """Save the tokenizer files, from which transformers and `open_tokenizer` get the same ids."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in self.engine.files().items():
            (folder / name).write_bytes(data)
        special: dict[str, Any] = {f"{role}_token": token for role, token in self.roles.items()}
        further = extras(self.settings)
        if further:
            special["additional_special_tokens"] = [content(token) for token in further]
        write_json(folder / SETTINGS, self.config() | special)
        write_json(folder / "special_tokens_map.json", special)

    def config(self) -> dict[str, Any]:
        """The contents of tokenizer_config.json, without the special tokens."""
        kept = {
            k: content(v) if isinstance(v, AddedToken) else v for k, v in self.settings.items() if k not in NOT_KEPT
        }
        kept |= {f"{role}_token": None for role in ROLES if f"{role}_token" in kept}
        rule = FORMS.get(self.form)
        # Listed by name, since a model given token types that it was not trained with would add their embeddings.
        inputs = ["input_ids", *(["token_type_ids"] if rule and rule.segments else []), "attention_mask"]
        # GPT-NeoX's class drops bos and eos when it opens a tokenizer.json; the generic class does not.
        form = GENERIC if self.form == "GPTNeoXTokenizer" else self.form
        config = {"clean_up_tokenization_spaces": False, "model_input_names": inputs} | kept
        config |= {"tokenizer_class": form, "padding_side": self.padding_side, "split_special_tokens": self.safe}
        if self.max_length is not None:
            config["model_max_length"] = self.max_length
        if self.settings.get("chat_template") is not None:
            config["chat_template"] = self.settings["chat_template"]
        added = {str(i): flags(token) for i, token in sorted(self.engine.added().items())}
        return config | ({"added_tokens_decoder": added} if added else {})


def flags(token: Any) -> dict[str, Any]:
    return {
        "content": token.content, "lstrip": token.lstrip, "normalized": token.normalized, "rstrip": token.rstrip,
        "single_word": token.single_word, "special": token.special,
    }  # fmt: skip


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def pad_ids(
    rows: Sequence[Sequence[int]], fill: int, *, side: Side, device: torch.device | str = "cpu"
) -> tuple[Tensor, Tensor]:
    """Lists of ids as one (B,T), with a mask that is True for tokens."""
    length = max(map(len, rows), default=0)
    ids = torch.full((len(rows), length), fill, dtype=torch.long)  # (B,T)
    mask = torch.zeros((len(rows), length), dtype=torch.bool)  # (B,T)
    for i, row in enumerate(rows):
        place = slice(length - len(row), length) if side == "left" else slice(0, len(row))
        ids[i, place] = torch.tensor(list(row), dtype=torch.long)
        mask[i, place] = True
    return ids.to(device), mask.to(device)


def side_of(value: Any) -> Side:
    if value not in ("left", "right"):
        raise UserError(f"padding side {str(value)[:40]!r}", fix="use 'left' or 'right'")
    return "left" if value == "left" else "right"


def limit_of(value: Any) -> int | None:
    """The longest sequence in tokens, None if the folder has no limit."""
    if value is None or isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < NO_LIMIT:
        return None
    return int(value)


def template_of(value: Any) -> str | None:
    """The chat template; of several, the one named default."""
    if isinstance(value, list):
        named = {row.get("name"): row.get("template") for row in value if isinstance(row, dict)}
        value = named.get("default")
    return value if isinstance(value, str) else None


def open_tokenizer(folder: Path) -> Tokenizer | None:
    """The tokenizer of a model folder, None if it has none; ids equal those of transformers' fast tokenizer."""
    folder = Path(folder)
    if there(folder, "source.spm") and there(folder, "target.spm"):
        return open_marian(folder)
    opened = open_folder(folder)
    if opened is None:
        return None
    tidy = "clip" if opened.form == "CLIPTokenizer" else ""
    if not tidy and flag(opened.settings, "clean_up_tokenization_spaces", False):
        # Meant for WordPiece; with BPE it would remove spaces of the original text.
        tidy = "" if type(opened.core.model).__name__ == "BPE" else "words"
    engine = LibraryEngine(opened.core, opened.roles, tidy=tidy)
    return Tokenizer(engine, opened.roles, opened.settings, form=opened.form)


def open_marian(folder: Path) -> Tokenizer:
    settings, _ = merge_settings(folder, json_if_there(folder, SETTINGS), [])
    if flag(settings, "separate_vocabs", False):
        raise UserError(
            "a Marian tokenizer with two vocabularies", where=folder.name, fix="one shared vocabulary is read"
        )
    roles = roles_of(named_tokens(settings, {"unk": "<unk>", "eos": "</s>", "pad": "<pad>"}))
    extra = [content(token) for token in extras(settings) or []]
    source, target = (MarianEngine(folder, roles, extra, target=side) for side in (False, True))
    return Tokenizer(source, roles, {"model_max_length": 512} | settings, form="MarianTokenizer", target=target)


def train_tokenizer(
    texts: Iterable[str],
    kind: Kind,
    vocab: int,
    *,
    special: Mapping[str, str] | None = None,
    extra: Sequence[str] = (),
    add_bos: bool = False,
    add_eos: bool = False,
    lower: bool = False,
    leading_blank: bool = False,
    max_length: int | None = None,
    safe: bool = True,
) -> Tokenizer:
    """Train a tokenizer on texts: byte-level or plain BPE, WordPiece, unigram, words, characters, bytes.

    `special` names the token of each role (`{"pad": "<pad>", "eos": "</s>"}`), `extra` further special tokens. None of
    them is parsed in a text unless `safe` is False: a prompt may then contain them (T5's sentinels). With
    `leading_blank` a word has the same tokens at the start of a text as after a space. The same texts give the same
    tokenizer.

    >>> words = train_tokenizer(["to be or not to be"], "bpe", 300, add_eos=True)
    >>> words.encode("to be")[-1] == words.eos
    True
    """
    named = dict(default_special(kind) if special is None else special)
    wrong = [role for role in named if role not in ROLES]
    if wrong:
        raise UserError(f"no special role {wrong[0]!r}", fix="use " + ", ".join(ROLES) + "; or extra=[...]")
    for asked, role in ((add_bos, "bos"), (add_eos, "eos")):
        if asked and role not in named:
            raise UserError(f"add_{role} without a {role} token", fix=f"name one: special={{'{role}': ...}}")
    core = train(list(check_texts(texts)), kind, vocab, named, extra, lower, leading_blank)
    core.post_processor = add_frame(core, named, add_bos, add_eos)
    settings: dict[str, Any] = {"split_special_tokens": safe, "model_max_length": max_length}
    if kind == "wordpiece":
        settings["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    if extra:
        settings["additional_special_tokens"] = list(extra)
    return Tokenizer(LibraryEngine(core, named), named, settings, form=GENERIC)


ONE_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Spelling(NamedTuple):
    """The bytes of every token inside a text; None for special tokens and unused ids."""

    tokens: list[bytes | None]
    drops_blank: bool  # whether a leading space of a text is dropped, as in sentencepiece


def spelling_of(engine: TokenizerBackend, special: Iterable[int | None]) -> Spelling:
    """How a backend spells its tokens; except for bytes, found by decoding each token after a word."""
    hidden = {number for number in special if number is not None}
    hidden |= {number for number, token in engine.added().items() if token.special}
    known = {n: token for n in range(engine.size()) if n not in hidden and (token := engine.token(n)) is not None}
    tokens: list[bytes | None] = [None] * engine.size()
    if isinstance(engine, LibraryEngine) and "ByteLevel" in repr(engine.core.decoder):
        added, table = engine.added(), byte_letters()
        for number, token in known.items():  # decoding would lose incomplete characters
            plain = number not in added and all(letter in table for letter in token)
            tokens[number] = bytes(table[letter] for letter in token) if plain else token.encode()
        return Spelling(tokens, False)
    alone = {number: engine.decode([number], skip_special=False) for number in known}
    words = [number for number, text in alone.items() if text.isascii() and text.isalpha()]
    if not words:
        return Spelling(tokens, False)
    before = min(words, key=lambda number: (len(alone[number]), number))
    front, drops = alone[before], False
    for number, token in known.items():
        byte, text = ONE_BYTE.fullmatch(token), engine.decode([before, number], skip_special=False)
        if byte:
            tokens[number] = bytes([int(byte[1], 16)])
        elif text.startswith(front):
            tokens[number] = text[len(front) :].encode()
            drops = drops or (text[len(front) :].startswith(" ") and not alone[number].startswith(" "))
    return Spelling(tokens, drops)


def byte_letters() -> dict[str, int]:
    """The letter for each byte in byte-level vocabularies: itself if printable, else one beyond them."""
    seen = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    rest = [byte for byte in range(256) if byte not in seen]
    return {chr(byte): byte for byte in seen} | {chr(256 + n): byte for n, byte in enumerate(rest)}

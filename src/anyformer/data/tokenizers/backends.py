"""Tokenizer backends: the tokenizers library, or sentencepiece for the one family it does not support (Marian)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

from tokenizers import Tokenizer as Core

from anyformer.data.tokenizers.files import AGAIN, read_bytes, read_vocab_json, short
from anyformer.errors import UserError
from anyformer.extras import require

Text = str | tuple[str, str]
Offsets = list[tuple[int, int]]  # the character range of each token: start, stop


class TokenizerBackend(Protocol):
    """Text to ids and back, without padding or settings."""

    def size(self) -> int:
        """One more than the highest id."""
        ...

    def id_of(self, token: str) -> int | None:
        """The id of a token, or None."""
        ...

    def token(self, number: int) -> str | None:
        """The token of an id, or None."""
        ...

    def added(self) -> dict[int, Any]:
        """Added tokens by id."""
        ...

    def encode(self, texts: Sequence[Text], *, special: bool, safe: bool) -> list[list[int]]:
        """Ids of each text or pair; `special` adds special tokens around; `safe` parses none in the text."""
        ...

    def encode_with_offsets(self, texts: Sequence[str], *, safe: bool) -> list[tuple[list[int], Offsets]]:
        """Ids of each text, without special tokens, and the character range of each token."""
        ...

    def decode(self, ids: Sequence[int], *, skip_special: bool) -> str:
        """The text of the ids."""
        ...

    def files(self) -> dict[str, bytes]:
        """The vocabulary files, by name."""
        ...


class LibraryEngine:
    """A `tokenizers.Tokenizer`, with a copy that ignores special tokens in untrusted text."""

    def __init__(self, core: Core, roles: dict[str, str], *, tidy: str = "") -> None:
        self.core, self.tidy = core, tidy
        core.encode_special_tokens = False
        special = {number: t.content for number, t in core.get_added_tokens_decoder().items() if t.special}
        # Exclude the unknown token, unless it has another role too (GPT-2's is its end of text).
        others = {token for role, token in roles.items() if role != "unk"}
        unk = roles.get("unk", "")
        self.unk = core.token_to_id(unk) if unk and unk not in others else None
        self.forbidden = set(special) - {self.unk}
        cuts = sorted((re.escape(token) for token in special.values() if token), key=len, reverse=True)
        self.look_alike = re.compile("|".join(cuts), re.IGNORECASE) if cuts else None

    @cached_property
    def guarded(self) -> Core:
        """A copy of the tokenizer to which special tokens in a text are plain text."""
        copy = Core.from_str(self.core.to_str())
        copy.encode_special_tokens = True
        return copy

    @cached_property
    def around(self) -> list[int]:
        """The numbers of special tokens added to a text, and to a pair."""
        try:
            return [self.count(row.ids) for row in self.guarded.encode_batch_fast(["", ("", "")])]
        except Exception:  # a word tokenizer without an unknown token cannot encode an empty text either
            return [0, 0]

    def size(self) -> int:
        return max(self.core.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def id_of(self, token: str) -> int | None:
        return self.core.token_to_id(token)

    def token(self, number: int) -> str | None:
        return self.core.id_to_token(number)

    def added(self) -> dict[int, Any]:
        return self.core.get_added_tokens_decoder()

    def files(self) -> dict[str, bytes]:
        return {"tokenizer.json": (self.core.to_str(pretty=True) + "\n").encode("utf-8")}

    def encode(self, texts: Sequence[Text], *, special: bool, safe: bool) -> list[list[int]]:
        core = self.guarded if safe else self.core
        try:
            rows = [row.ids for row in core.encode_batch_fast(list(texts), add_special_tokens=special)]
        except (TypeError, UnicodeError):
            raise wrong_text(texts) from None
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic of the compiled library is not an Exception
            raise UserError(
                f"the text cannot be encoded ({short(error)})", fix="give the tokenizer an unknown token"
            ) from None
        if safe and self.forbidden:
            for i, (text, ids) in enumerate(zip(texts, rows, strict=True)):
                if self.count(ids) > (self.around[isinstance(text, tuple)] if special else 0):
                    rows[i] = self.careful(text, special)
        return rows

    def count(self, ids: Sequence[int]) -> int:
        return 0 if self.forbidden.isdisjoint(ids) else sum(map(self.forbidden.__contains__, ids))

    def careful(self, text: Text, special: bool) -> list[int]:
        """Ids of a text that contains vocabulary special tokens as plain words: those words are split."""
        one, two = text if isinstance(text, tuple) else (text, None)
        whole = self.guarded.encode(one, two, add_special_tokens=special)
        sides = [self.cut_apart(part) for part in (one, two) if part is not None]
        result: list[int] = []
        done: set[int] = set()
        for number, side in zip(whole.ids, whole.sequence_ids, strict=True):
            if side is None:
                result.append(number)
            elif side not in done:
                done.add(side)
                result += sides[side]
        return result

    def cut_apart(self, text: str) -> list[int]:
        return [number for number, _ in self.cut_apart_with_offsets(text)]

    def cut_apart_with_offsets(self, text: str) -> list[tuple[int, tuple[int, int]]]:
        """The ids of a text whose words must not become special tokens, each with its character range."""
        places = [match.start() + 1 for match in self.look_alike.finditer(text)] if self.look_alike else []
        edges = [0, *places, len(text)]
        for cuts in (edges, range(len(text) + 1)):
            parts = [(start, text[start:stop]) for start, stop in pairwise(cuts)]
            rows = self.guarded.encode_batch([part for _, part in parts], add_special_tokens=False)
            found = [
                (number, (begin + start, begin + stop))
                for (begin, _), row in zip(parts, rows, strict=True)
                for number, (start, stop) in zip(row.ids, row.offsets, strict=True)
            ]
            if not self.count([number for number, _ in found]):
                return found
        kept = [(self.unk if number in self.forbidden else number, place) for number, place in found]
        return [(number, place) for number, place in kept if number is not None]

    def encode_with_offsets(self, texts: Sequence[str], *, safe: bool) -> list[tuple[list[int], Offsets]]:
        core = self.guarded if safe else self.core
        found = []
        for text, row in zip(texts, core.encode_batch(list(texts), add_special_tokens=False), strict=True):
            ids, offsets = row.ids, row.offsets
            if safe and self.count(ids):
                pairs = self.cut_apart_with_offsets(text)
                ids, offsets = [number for number, _ in pairs], [place for _, place in pairs]
            found.append((ids, offsets))
        return found

    def decode(self, ids: Sequence[int], *, skip_special: bool) -> str:
        text = self.core.decode(list(ids), skip_special_tokens=skip_special)
        if self.tidy == "clip":
            return text.replace("</w>", " ").strip()
        return tidy_blanks(text) if self.tidy == "words" else text


def tidy_blanks(text: str) -> str:
    """Remove spaces before punctuation and contractions, as published WordPiece tokenizers do."""
    for blank in (" .", " ?", " !", " ,"):
        text = text.replace(blank, blank[1:])
    text = text.replace(" ' ", "'")
    for short_form in (" n't", " 'm", " 's", " 've", " 're"):
        text = text.replace(short_form, short_form[1:])
    return text


def wrong_text(texts: Sequence[Any]) -> UserError:
    """The error for a text that is not a valid string."""
    for i, text in enumerate(texts):
        for part in text if isinstance(text, tuple) else (text,):
            if not isinstance(part, str):
                return UserError(f"text {i} is {type(part).__name__}", fix="give strings")
            if any("\ud800" <= c <= "\udfff" for c in part):
                return UserError(f"text {i} holds half a character (a lone surrogate)", fix="read the file as UTF-8")
    return UserError("the texts cannot be encoded", fix="give a list of strings")


class MarianEngine:
    """Two sentencepiece models, one per language, over one vocabulary. `target` encodes the target language."""

    def __init__(self, folder: Path, roles: dict[str, str], extra: Sequence[str], *, target: bool) -> None:
        self.kept = {name: read_bytes(folder, name) for name in ("source.spm", "target.spm", "vocab.json")}
        self.vocab = read_vocab_json(folder)
        self.words = {number: token for token, number in self.vocab.items()}
        lost = [token for token in roles.values() if token not in self.vocab]
        if lost:
            raise UserError(f"{lost[0]!r} is not in the vocabulary", where="vocab.json", fix=AGAIN)
        self.special = {token: self.vocab[token] for token in [*roles.values(), *extra] if token in self.vocab}
        self.unk, self.eos = self.vocab[roles["unk"]], self.vocab[roles["eos"]]
        self.split = re.compile("(" + "|".join(sorted(map(re.escape, self.special), key=len, reverse=True)) + ")")
        self.model = sentencepiece_model(self.kept, "target.spm" if target else "source.spm")
        self.writer = sentencepiece_model(self.kept, "target.spm")

    def size(self) -> int:
        return max(self.words, default=-1) + 1

    def id_of(self, token: str) -> int | None:
        return self.vocab.get(token)

    def token(self, number: int) -> str | None:
        return self.words.get(number)

    def added(self) -> dict[int, Any]:
        return {}

    def files(self) -> dict[str, bytes]:
        return self.kept

    def encode(self, texts: Sequence[Text], *, special: bool, safe: bool) -> list[list[int]]:
        end = [self.eos] if special else []
        try:
            return [
                [i for part in (text if isinstance(text, tuple) else (text,)) for i in self.ids(part, safe)] + end
                for text in texts
            ]
        except (TypeError, UnicodeError):
            raise wrong_text(texts) from None

    def encode_with_offsets(self, texts: Sequence[str], *, safe: bool) -> list[tuple[list[int], Offsets]]:
        raise UserError("Marian's tokenizer does not say where in a text its tokens stand", fix="use another tokenizer")

    def ids(self, text: str, safe: bool) -> list[int]:
        found: list[int] = []
        for part in [text] if safe else self.split.split(text):
            if not safe and part in self.special:
                found.append(self.special[part])
            elif part:
                found += [self.vocab.get(piece, self.unk) for piece in self.pieces(part)]
        marked = set(self.special.values()) - {self.unk}
        return [self.unk if i in marked else i for i in found] if safe else found

    def pieces(self, text: str) -> list[str]:
        # ">>fr<< text" names the target language; it is one token, not text
        code, close, rest = text.partition("<<") if text.startswith(">>") else ("", "", "")
        front = [code + close] if close else []
        pieces: list[str] = self.model.encode(rest if close else text, out_type=str)
        return front + pieces

    def decode(self, ids: Sequence[int], *, skip_special: bool) -> str:
        text, run = "", []
        for number in ids:
            token = self.words.get(int(number), "")
            if token not in self.special:
                run.append(token)
            elif not skip_special:
                text += self.writer.decode_pieces(run) + token + " "
                run = []
        return str(text + self.writer.decode_pieces(run)).replace("▁", " ").strip()


def sentencepiece_model(files: dict[str, bytes], name: str) -> Any:
    require("sentencepiece", "Marian's tokenizer needs", where=name)
    import sentencepiece

    try:
        return sentencepiece.SentencePieceProcessor(model_proto=files[name])
    except Exception as error:
        raise UserError(f"not a sentencepiece model ({short(error)})", where=name, fix=AGAIN) from None

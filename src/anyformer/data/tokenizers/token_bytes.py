"""What each token writes, in bytes: what a grammar must know of a vocabulary to say which tokens may come next."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from anyformer.data.tokenizers.backends import LibraryEngine, TokenizerBackend

ONE_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Spelling(NamedTuple):
    """The bytes of every token inside a text; None for special tokens and ids that have no token."""

    tokens: list[bytes | None]
    drops_blank: bool  # whether a blank that a text would begin with is left out, as sentencepiece does


def spelling_of(engine: TokenizerBackend, special: Iterable[int | None]) -> Spelling:
    """How an engine spells its tokens; but for bytes that is found by decoding each of them behind a word."""
    hidden = {number for number in special if number is not None}
    hidden |= {number for number, token in engine.added().items() if token.special}
    known = {n: token for n in range(engine.size()) if n not in hidden and (token := engine.token(n)) is not None}
    tokens: list[bytes | None] = [None] * engine.size()
    if isinstance(engine, LibraryEngine) and "ByteLevel" in repr(engine.core.decoder):
        added, table = engine.added(), byte_letters()
        for number, token in known.items():  # decoding would lose what is no whole character
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
    """The letter that byte-level vocabularies write for each byte: itself where it can be seen, else one past them."""
    seen = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    rest = [byte for byte in range(256) if byte not in seen]
    return {chr(byte): byte for byte in seen} | {chr(256 + n): byte for n, byte in enumerate(rest)}

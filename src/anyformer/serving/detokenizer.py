"""Incremental detokenization: complete characters only, and nothing that a later token or stop string would change."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence

from anyformer.data.tokenizers.backends import LibraryEngine
from anyformer.data.tokenizers.tokenizer import Tokenizer

HALF = "\ufffd"  # the decoder's output for an incomplete character
KEPT = 8  # context tokens before the newest; more than the length of the longest of TAKEN_BACK
WINDOW = 32  # about the most tokens decoded again with each new one
# Where clean_up_tokenization_spaces removes spaces once the whole pattern is there.
TAKEN_BACK = (" ' ", " n't", " 'm", " 's", " 've", " 're")


class Detokenizer:
    """Detokenization for one tokenizer: created once, shared by all sequences."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        engine = tokenizer.engine
        self.taken_back = TAKEN_BACK if isinstance(engine, LibraryEngine) and engine.tidy else ()
        self.special = {number for number, token in engine.added().items() if token.special}
        # Byte-fallback tokens form runs; decoded before its end, a run may be an invalid character.
        joined = isinstance(engine, LibraryEngine) and "ByteFallback" in repr(engine.core.decoder)
        byte_ids = [engine.id_of(f"<0x{value:02X}>") for value in range(256)] if joined else []
        self.bytes = {number for number in byte_ids if number is not None}
        self.tokens: dict[int, tuple[bytes, str]] = {}
        self.by_bytes = (
            isinstance(engine, LibraryEngine) and not engine.tidy and "ByteLevel(" in repr(engine.core.decoder)
        )

    def text(self, ids: Sequence[int]) -> str:
        """The text of some tokens, without special ones."""
        return self.tokenizer.decode(ids)

    def pieces(self, before: Sequence[int] = ()) -> TextPieces | ByteTextPieces:
        """An incremental decoder that continues after some tokens: a first word keeps its leading space."""
        return ByteTextPieces(self) if self.by_bytes else TextPieces(self, before)

    def token(self, number: int) -> tuple[bytes, str]:
        """One token's bytes, and its name: its text, or its bytes if they are not valid text by themselves."""
        found = self.tokens.get(number)
        if found is None:
            spelling = self.tokenizer.spelling[0]
            raw = spelling[number] if number < len(spelling) else None
            # A special token has no bytes and is named by its content; an id without a token by its number.
            found = (
                (b"", self.tokenizer.engine.token(number) or f"<{number}>") if raw is None else (raw, token_name(raw))
            )
            self.tokens[number] = found
        return found


def token_name(raw: bytes) -> str:
    """Bytes as text; if they are not valid UTF-8, in the notation of OpenAI's completions.

    >>> token_name(b" a"), token_name(b"\\xe2\\x82")
    (' a', 'bytes:\\\\xe2\\\\x82')
    """
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


class TextPieces:
    """Turns tokens into pieces of text; joined, the pieces equal the decoded text of all tokens.

    `before` are the preceding tokens: a first word keeps its leading space.
    """

    def __init__(self, reader: Detokenizer, before: Sequence[int] = ()) -> None:
        self.reader = reader
        self.ids = list(before[-KEPT:])
        self.given = 0  # characters of the window's text already returned
        self.again = WINDOW
        text = reader.text(self.ids) if self.ids else ""
        if text.endswith(HALF) or not text:
            self.ids = []
        else:
            self.given = len(text)

    def add(self, ids: Iterable[int]) -> str:
        """Add tokens; returns the text that is now final."""
        self.ids += ids
        if self.reader.bytes and self.is_in_bytes():
            return ""
        text = self.reader.text(self.ids)
        piece = self.hand_out(text, len(text) - self.unsettled(text))
        if len(self.ids) > self.again:
            self.shorten(text)
        return piece

    def end(self) -> str:
        """The text held back, at the end."""
        text = self.reader.text(self.ids)
        return self.hand_out(text, len(text))

    def hand_out(self, text: str, upto: int) -> str:
        piece = text[self.given : upto]
        self.given = max(self.given, upto)
        return piece

    def is_in_bytes(self) -> bool:
        """Whether the newest non-special token is a byte-fallback token."""
        last = next((one for one in reversed(self.ids) if one not in self.reader.special), None)
        return last in self.reader.bytes

    def unsettled(self, text: str) -> int:
        """How many trailing characters may still change."""
        if text.endswith(HALF):
            return 1  # an incomplete character decodes to one replacement sign, whatever its bytes
        return longest_stop_prefix(text, self.reader.taken_back)

    def shorten(self, text: str) -> None:
        """Drop old tokens, if the rest decodes to the same text without them."""
        for start in range(len(self.ids) - KEPT, len(self.ids) - 2 * KEPT, -1):
            if self.ids[start] in self.reader.bytes:
                continue
            rest = self.reader.text(self.ids[start:])
            given = self.given - (len(text) - len(rest))
            # A rest that begins inside a character could decode equally now and differently later.
            if rest and rest[0] != HALF and given >= 0 and text.endswith(rest):
                self.ids, self.given, self.again = self.ids[start:], given, WINDOW
                return
        self.again = len(self.ids) * 2  # unusual text: try again when it is twice as long


class ByteTextPieces:
    """The same for byte-level tokenizers, whose text is the concatenation of token bytes: nothing is decoded twice."""

    def __init__(self, reader: Detokenizer) -> None:
        self.reader = reader
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, ids: Iterable[int]) -> str:
        """Add tokens; returns their complete characters."""
        token = self.reader.token
        return self.decoder.decode(b"".join([token(one)[0] for one in ids]))

    def end(self) -> str:
        """The rest, with incomplete characters replaced."""
        return self.decoder.decode(b"", True)


class StopFilter:
    """Passes text up to the first stop string; holds back a possible beginning of one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops, self.held, self.found = tuple(stops), "", False

    def add(self, piece: str) -> str:
        """Add text; returns what can be shown."""
        if self.found or not piece:
            return ""
        if not self.stops:
            return piece
        text = self.held + piece
        places = [at for stop in self.stops if (at := text.find(stop)) >= 0]
        if places:
            self.found, self.held = True, ""
            return text[: min(places)]
        waits = longest_stop_prefix(text, self.stops)
        self.held = text[len(text) - waits :]
        return text[: len(text) - waits]

    def end(self) -> str:
        """The held text, at the end."""
        held, self.held = self.held, ""
        return held


def longest_stop_prefix(text: str, patterns: Sequence[str]) -> int:
    """Length of the longest suffix of the text that is a proper prefix of some pattern.

    >>> longest_stop_prefix("a word\\nus", ["\\nuser:"])
    3
    """
    longest = 0
    for pattern in patterns:
        for size in range(min(len(pattern) - 1, len(text)), longest, -1):
            if text.endswith(pattern[:size]):
                longest = size
                break
    return longest

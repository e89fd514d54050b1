"""Text as it comes, token by token: whole characters only, and nothing that a later token or a stop would take back."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence

from anyformer.data.tokenizers.backends import LibraryEngine
from anyformer.data.tokenizers.tokenizer import Tokenizer

HALF = "\ufffd"  # what a decoder writes for bytes that are not a whole character, yet
KEPT = 8  # tokens before the newest that a decoder may look back on; more than the longest of TAKEN_BACK has letters
WINDOW = 32  # tokens read again with each new one, at most about
# What a tokenizer that tidies its words takes blanks out of, once it stands there whole.
TAKEN_BACK = (" ' ", " n't", " 'm", " 's", " 've", " 're")


class Detokenizer:
    """How the tokens of one tokenizer are read: made once, shared by all texts."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        engine = tokenizer.engine
        self.taken_back = TAKEN_BACK if isinstance(engine, LibraryEngine) and engine.tidy else ()
        self.special = {number for number, token in engine.added().items() if token.special}
        # Bytes that spell a character together are one run; read before its end, it may turn out to be no character.
        joined = isinstance(engine, LibraryEngine) and "ByteFallback" in repr(engine.core.decoder)
        token_name = [engine.id_of(f"<0x{value:02X}>") for value in range(256)] if joined else []
        self.bytes = {number for number in token_name if number is not None}
        self.tokens: dict[int, tuple[bytes, str]] = {}
        self.by_bytes = (
            isinstance(engine, LibraryEngine) and not engine.tidy and "ByteLevel(" in repr(engine.core.decoder)
        )

    def text(self, ids: Sequence[int]) -> str:
        """The text of some tokens, special ones left out."""
        return self.tokenizer.decode(ids)

    def pieces(self, before: Sequence[int] = ()) -> TextPieces | ByteTextPieces:
        """A text that goes on from some tokens: a first word keeps the blank between it and them."""
        return ByteTextPieces(self) if self.by_bytes else TextPieces(self, before)

    def token(self, number: int) -> tuple[bytes, str]:
        """What one token writes, in bytes and as a name: its text, or its bytes where they are not text alone."""
        found = self.tokens.get(number)
        if found is None:
            spelling = self.tokenizer.spelling[0]
            raw = spelling[number] if number < len(spelling) else None
            # A special token writes nothing and is called by its name; an id without a token by its number.
            found = (
                (b"", self.tokenizer.engine.token(number) or f"<{number}>") if raw is None else (raw, token_name(raw))
            )
            self.tokens[number] = found
        return found


def token_name(raw: bytes) -> str:
    """Bytes as text; where they are none, as OpenAI's completions write them.

    >>> token_name(b" a"), token_name(b"\\xe2\\x82")
    (' a', 'bytes:\\\\xe2\\\\x82')
    """
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


class TextPieces:
    """Tokens in, pieces of text out; joined, the pieces are what the tokens spell as a whole.

    `before` are the tokens the text goes on from: a first word keeps the blank between it and them.
    """

    def __init__(self, reader: Detokenizer, before: Sequence[int] = ()) -> None:
        self.reader = reader
        self.ids = list(before[-KEPT:])
        self.given = 0  # characters of the window's text that have been handed out
        self.again = WINDOW
        text = reader.text(self.ids) if self.ids else ""
        if text.endswith(HALF) or not text:
            self.ids = []
        else:
            self.given = len(text)

    def add(self, ids: Iterable[int]) -> str:
        """More tokens; the text that is now settled."""
        self.ids += ids
        if self.reader.bytes and self.is_in_bytes():
            return ""
        text = self.reader.text(self.ids)
        piece = self.hand_out(text, len(text) - self.unsettled(text))
        if len(self.ids) > self.again:
            self.shorten(text)
        return piece

    def end(self) -> str:
        """What was held back, now that nothing more comes."""
        text = self.reader.text(self.ids)
        return self.hand_out(text, len(text))

    def hand_out(self, text: str, upto: int) -> str:
        piece = text[self.given : upto]
        self.given = max(self.given, upto)
        return piece

    def is_in_bytes(self) -> bool:
        """Whether the newest token that spells something is a single byte."""
        last = next((one for one in reversed(self.ids) if one not in self.reader.special), None)
        return last in self.reader.bytes

    def unsettled(self, text: str) -> int:
        """How many of the last characters may still change."""
        if text.endswith(HALF):
            return 1  # bytes cut short are one such sign, however many of them are there
        return longest_stop_prefix(text, self.reader.taken_back)

    def shorten(self, text: str) -> None:
        """Forget old tokens, where the rest reads the same without them."""
        for start in range(len(self.ids) - KEPT, len(self.ids) - 2 * KEPT, -1):
            if self.ids[start] in self.reader.bytes:
                continue
            rest = self.reader.text(self.ids[start:])
            given = self.given - (len(text) - len(rest))
            # A rest that began within a character could look the same now and not later.
            if rest and rest[0] != HALF and given >= 0 and text.endswith(rest):
                self.ids, self.given, self.again = self.ids[start:], given, WINDOW
                return
        self.again = len(self.ids) * 2  # a strange text: look again when it is twice as long


class ByteTextPieces:
    """The same where tokens are bytes and a text is nothing but their row: nothing is read twice."""

    def __init__(self, reader: Detokenizer) -> None:
        self.reader = reader
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, ids: Iterable[int]) -> str:
        """More tokens; their whole characters."""
        token = self.reader.token
        return self.decoder.decode(b"".join([token(one)[0] for one in ids]))

    def end(self) -> str:
        """What was not a whole character to the end."""
        return self.decoder.decode(b"", True)


class StopFilter:
    """Lets text through up to the first stop; what may be the beginning of one waits."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops, self.held, self.found = tuple(stops), "", False

    def add(self, piece: str) -> str:
        """More text; what of it may be shown."""
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
        """What waited, now that it has become no stop."""
        held, self.held = self.held, ""
        return held


def longest_stop_prefix(text: str, patterns: Sequence[str]) -> int:
    """Length of the longest end of the text that some pattern begins with.

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

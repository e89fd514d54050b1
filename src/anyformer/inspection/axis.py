"""Token axes of a map: words, patches of an image, columns of a table, frames of audio."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from torch import Tensor

from anyformer.embeds.conv_stem import ConvStem
from anyformer.embeds.frames import Frames
from anyformer.embeds.joint import Joint
from anyformer.embeds.maps import Maps, cells
from anyformer.embeds.patches import Patches
from anyformer.embeds.queries import Queries
from anyformer.embeds.table import Table
from anyformer.errors import UserError

if TYPE_CHECKING:
    from anyformer.data.tokenizers.tokenizer import Tokenizer
    from anyformer.inference.predictor import Predictor

SPECIAL, PIECE = "special", "piece"
MOST_PIECES = 8  # most tokens into which one character is split


@dataclass(frozen=True)
class Token:
    """A token in readable form."""

    text: str
    kind: str = "word"  # word, piece, special, patch, register, column, frame, query or token
    id: int | None = None
    note: str = ""
    segment: int | None = None  # which text of a pair it is in, if the model has token types (BERT)


@dataclass(frozen=True)
class TokenAxis:
    """The tokens of one sequence, and the grid of its patches."""

    name: str
    tokens: tuple[Token, ...]
    grid: tuple[int, int] | None = None  # rows and columns of patches
    first: int = 0  # index of the first patch
    written: tuple[Token, ...] = ()  # of a decoder: the output token of each step, which follows the input token

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def texts(self) -> list[str]:
        return [token.text for token in self.tokens]

    def to_json(self) -> dict[str, Any]:
        found = {"name": self.name, "tokens": tokens_as_json(self.tokens), "grid": self.grid, "first": self.first}
        return found | ({"written": tokens_as_json(self.written)} if self.written else {})


def tokens_as_json(tokens: Sequence[Token]) -> list[dict[str, Any]]:
    return [{key: value for key, value in asdict(token).items() if value not in (None, "")} | {"text": token.text}
            for token in tokens]  # fmt: skip


def axis_of(
    name: str, embed: Any, given: Sequence[Any], length: int, predictor: Predictor | None, row: int
) -> TokenAxis:
    """The axis of an embedding's tokens; numbered tokens if the stack has changed their count."""
    tokens, grid, first = tokens_of(embed, given, length, predictor, row, target=name == "decoder")
    if len(tokens) != length:
        return numbered(name, length)
    return TokenAxis(name, tuple(tokens), grid, first)


def with_segments(axis: TokenAxis, segments: Any, row: int) -> TokenAxis:
    """The axis with the segment of each token, if there are several segments."""
    if not isinstance(segments, Tensor) or segments.dim() != 2 or segments.shape[1] != len(axis):
        return axis
    numbers = segments[min(row, len(segments) - 1)].tolist()
    if len(set(numbers)) < 2:
        return axis
    tokens = (replace(token, segment=number) for token, number in zip(axis.tokens, numbers, strict=True))
    return replace(axis, tokens=tuple(tokens))


def segment_words(axis: TokenAxis) -> str:
    """The token range of each segment, in words; empty if there is only one.

    >>> segment_words(TokenAxis("", tuple(Token(text, segment=int(text > "b")) for text in "abcd")))
    'segment 0 is tokens 0 to 1, segment 1 tokens 2 to 3'
    """
    runs = [(number, [i for i, _ in run]) for number, run in groupby(enumerate(axis.tokens), lambda at: at[1].segment)]
    named = [(number, run) for number, run in runs if number is not None]
    words = (f"segment {number} {'tokens' if n else 'is tokens'} {run[0]} to {run[-1]}"
             for n, (number, run) in enumerate(named))  # fmt: skip
    return ", ".join(words) if len(named) > 1 else ""


def numbered(name: str, length: int) -> TokenAxis:
    return TokenAxis(name, tuple(Token(str(i), "token") for i in range(length)))


def merged(name: str, axis: TokenAxis | None, length: int) -> TokenAxis:
    """The axis of a later layer with fewer tokens: a pyramid halves the grid; otherwise tokens are numbered."""
    grid = None if axis is None else axis.grid
    while grid is not None and grid != (1, 1) and grid[0] * grid[1] > length:
        grid = -(-grid[0] // 2), -(-grid[1] // 2)
    if grid is None or grid[0] * grid[1] != length:
        return numbered(name, length)
    return TokenAxis(name, tuple(grid_tokens(*grid)), grid)


Found = tuple[list[Token], tuple[int, int] | None, int]


def tokens_of(
    embed: Any, given: Sequence[Any], length: int, predictor: Predictor | None, row: int, *, target: bool = False
) -> Found:
    """Tokens, the grid of patches if any, and the index of its first patch."""
    spec = getattr(embed, "spec", None)
    if isinstance(spec, Joint):
        return joint_tokens(embed, given, predictor, row)
    if isinstance(spec, Patches) and isinstance(given[0], Tensor):
        return patch_tokens(spec, given[0])
    if isinstance(spec, Maps | ConvStem) and isinstance(given[0], Tensor):
        stride, cls = (spec.backbone.stride, spec.cls) if isinstance(spec, Maps) else (spec.cell, False)
        grid = cells((given[0].shape[2], given[0].shape[3]), stride)
        return [Token("[CLS]", SPECIAL)] * cls + grid_tokens(*grid), grid, int(cls)
    if isinstance(spec, Table):
        return table_tokens(spec, given, predictor, row), None, 0
    if isinstance(spec, Queries):
        return [Token(f"object {i}", "query") for i in range(length)], None, 0
    if isinstance(spec, Frames):
        return sound_tokens(spec), spec.grid, spec.leading
    ids = next((x for x in given if isinstance(x, Tensor) and not x.is_floating_point() and x.dim() == 2), None)
    if ids is not None:
        words = None if predictor is None else predictor.tokenizer
        words = words.target if words is not None and target else words
        return word_tokens(words, ids[min(row, len(ids) - 1)].tolist()), None, 0
    return [Token(str(i), "token") for i in range(length)], None, 0


def joint_tokens(embed: Any, given: Sequence[Any], predictor: Predictor | None, row: int) -> Found:
    """The tokens of all parts, concatenated."""
    found: list[Token] = []
    grid, first = None, 0
    for part, value in zip(embed.parts, given, strict=True):
        if value is None:
            continue
        inputs = value if isinstance(value, tuple) else (value,)
        length = part.layout(*inputs).index.shape[1]
        tokens, own, start = tokens_of(part, inputs, length, predictor, row)
        if own is not None and grid is None:
            grid, first = own, len(found) + start
        found += tokens if len(tokens) == length else [Token(str(i), "token") for i in range(length)]
    return found, grid, first


def patch_tokens(spec: Patches, pixels: Tensor) -> Found:
    """Class and register tokens, then the patches by row and column, counted from 0."""
    rows, columns = pixels.shape[2] // spec.cell[0], pixels.shape[3] // spec.cell[1]
    lead = [Token("[CLS]", SPECIAL)] * spec.cls + [Token("[DIST]", SPECIAL)] * spec.distill
    lead += [Token(f"register {i}", "register") for i in range(spec.registers)]
    return lead + grid_tokens(rows, columns), (rows, columns), len(lead)


def grid_tokens(rows: int, columns: int) -> list[Token]:
    return [Token(f"r{i} c{j}", "patch", note=f"patch in row {i}, column {j}")
            for i in range(rows) for j in range(columns)]  # fmt: skip


def sound_tokens(spec: Frames) -> list[Token]:
    """Class tokens, then the patches of the spectrogram, band by band."""
    bands, times = spec.grid
    lead = [Token("[CLS]", SPECIAL)] * spec.cls + [Token("[DIST]", SPECIAL)] * spec.distill
    places = [(i, j) for i in range(bands) for j in range(times)]
    names = [f"frame {time}" if bands == 1 else f"b{band} t{time}" for band, time in places]
    notes = [f"band {band}, time {time}" for band, time in places]
    return lead + [Token(name, "frame", note=note) for name, note in zip(names, notes, strict=True)]


def table_tokens(spec: Table, given: Sequence[Any], predictor: Predictor | None, row: int) -> list[Token]:
    """One token per column, with its value."""
    if spec.joined is not None:
        return [Token("all columns", "column")]
    numbers, others = column_names(predictor)
    if len(numbers) != spec.numbers:
        numbers = [f"number {i}" for i in range(spec.numbers)]
    if len(others) != len(spec.categories or ()):
        others = [f"category {i}" for i in range(len(spec.categories or ()))]
    values = [x[row].tolist() if isinstance(x, Tensor) else [] for x in (*given, None, None)[:2]]
    notes = [f"{value:.3g} as the model sees it" for value in values[0]] + [f"value {value}" for value in values[1]]
    notes += [""] * (len(numbers) + len(others) - len(notes))
    named = [Token(name, "column", note=note) for name, note in zip(numbers + others, notes, strict=True)]
    return [Token("[CLS]", SPECIAL)] * spec.cls + named


def column_names(predictor: Predictor | None) -> tuple[list[str], list[str]]:
    """Names of a table's numeric and categorical columns, in the order of its tokens."""
    if predictor is None or predictor.preprocess is None:
        return [], []
    from anyformer.data.columns.table import TableColumn

    columns = [column for column in predictor.preprocess.columns or () if isinstance(column, TableColumn)]
    numbers = [
        column.name if column.width == 1 else f"{column.name} {part + 1}"
        for column in columns if column.ids is None for part in range(column.width)
    ]  # fmt: skip
    return numbers, [column.name for column in columns if column.ids is not None]


def word_tokens(words: Tokenizer | None, ids: Sequence[int]) -> list[Token]:
    """The tokens of a text with their spaces; of a character split in 3, the first has it, the second is "·2/3"."""
    if words is None:
        return [Token(str(number), "word", number) for number in ids]
    found = [word_token(words, number) for number in ids]
    at = 0
    while at < len(ids):
        text, count = read_pieces(words, ids[at : at + MOST_PIECES])
        for part in range(count if count > 1 else 0):
            note = f"piece {part + 1} of {count} of {text.strip()}: {found[at + part].text}"
            shown = (text, "word") if part == 0 else (f"·{part + 1}/{count}", PIECE)
            found[at + part] = Token(*shown, ids[at + part], note)
        at += count
    return found


def read_pieces(words: Tokenizer, ids: Sequence[int]) -> tuple[str, int]:
    """The shortest decodable text from the first of these ids, and how many ids it takes."""
    spelled, together = words.spelling.tokens, b""
    for count, number in enumerate(ids, 1):
        piece = spelled[number] if 0 <= number < len(spelled) else None
        if piece is None:
            break
        together += piece
        try:
            return together.decode(), count
        except UnicodeDecodeError:
            continue
    return "", 1


def text_of(tokens: Iterable[Token]) -> str:
    """The text of the word tokens; special tokens and further pieces of a character add nothing."""
    return "".join(token.text for token in tokens if token.kind == "word")


def word_token(words: Tokenizer, number: int) -> Token:
    spelled = words.spelling.tokens
    written = spelled[number] if 0 <= number < len(spelled) else None
    if written is None:
        try:
            return Token(words.token(number), SPECIAL, number)
        except UserError:  # an id without a token: padding of the embedding table
            return Token(f"#{number}", SPECIAL, number)
    try:
        return Token(written.decode(), "word", number)
    except UnicodeDecodeError:
        return Token("".join(f"<{byte:02x}>" for byte in written), "word", number, "a part of a character")

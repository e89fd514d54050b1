"""Names of parallel text files: train.en and train.de, train_en.txt and train_de.txt, en.txt and de.txt."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from anyformer.data.files.open_text import open_text_file
from anyformer.data.files.path_kinds import PACKINGS, kind_of_name
from anyformer.data.files.side_folders import side_of_name
from anyformer.data.settings import Format
from anyformer.errors import UserError

# ISO 639-1, and the three-letter codes and names in common use.
CODES = frozenset(
    "aa ab af am ar as az ba be bg bn bo br bs ca co cs cy da de dz el en eo es et eu fa fi fo fr fy ga gd gl gu gv ha "
    "he hi hr ht hu hy id ig is it iu iw ja jv ka kk kl km kn ko ku ky la lb ln lo lt lv mg mi mk ml mn mr ms mt my nb "
    "ne nl nn no oc om or pa pl ps pt qu rm ro ru rw sa sd se si sk sl sm sn so sq sr st su sv sw ta te tg th ti tk tl "
    "tn tr tt ug uk ur uz vi vo wo xh yi yo zh zu "
    "ara ben bul cat ces cze deu ger dan ell eng est fas fin fra fre heb hin hrv hun ind isl ita jpn kor lat lav lit "
    "mkd nld dut nor pol por ron rum rus slk slv spa sqi srp swe tam tel tha tur ukr urd vie zho chi "
    "arabic chinese czech danish dutch english finnish french german greek hebrew hindi hungarian italian japanese "
    "korean latin norwegian polish portuguese romanian russian spanish swedish turkish ukrainian vietnamese".split()
)
Pair = tuple[Path, Path]


def language_of(path: Path) -> tuple[str, str] | None:
    """The language in a file name, and the name without it; None if there is none.

    >>> language_of(Path("train.en")), language_of(Path("news_de.txt")), language_of(Path("en-US.txt"))
    (('en', 'train.*'), ('de', 'news_*.txt'), ('en', '*.txt'))
    >>> language_of(Path("notes.txt"))
    """
    name = path.name.lower()
    for packed in PACKINGS:
        name = name.removesuffix(packed)
    if kind_of_name(name) not in ("", "text"):
        return None
    ending = "".join(Path(name).suffixes[-1:]) if kind_of_name(name) == "text" else ""
    stem = name.removesuffix(ending)
    words = list(re.finditer(r"[^._-]+", stem))
    # The last word first: `train.de-en.en` is the English side of a German-English pair.
    for word in reversed(words):
        if word.group() in CODES:
            end = word.end()
            country = re.match(r"[-_](?:[a-z]{2}|han[st]|latn|cyrl)$", stem[end:])
            return word.group(), stem[: word.start()] + "*" + ("" if country else stem[end:]) + ending
    return None


def are_parallel(one: Path, other: Path) -> bool:
    """Whether two file names differ only in the language, and the files have equally many lines."""
    first, second = language_of(one), language_of(other)
    if first is None or second is None or first[1] != second[1] or first[0] == second[0]:
        return False
    return one.is_file() and other.is_file() and count_lines(one) == count_lines(other)


def count_lines(path: Path) -> int:
    """Number of lines of a text file; -1 if it is not text."""
    try:
        return sum(1 for _ in open_text_file(path, Format()).lines())
    except UserError:
        return -1


def parallel_sides(folder: Path) -> dict[str, Pair] | None:
    """The file pairs of each split in a folder of parallel text; None for any other folder.

    There are two languages, and each split has one file of both; a pair that names no split must be the only one. The
    language that is first in the alphabet is the source, the other one the target.
    """
    found: dict[str, dict[str, Path]] = {}
    for path in sorted(folder.iterdir()):
        said = language_of(path) if path.is_file() and not path.name.startswith(".") else None
        if said is not None:
            found.setdefault(said[1], {})[said[0]] = path
    pairs = [sorted(files.items()) for files in found.values() if len(files) == 2]
    if not pairs or len({tuple(language for language, _ in pair) for pair in pairs}) > 1:
        return None
    sides: dict[str, Pair] = {}
    for (_, one), (_, other) in pairs:
        side = side_of_name(one.name.split(".")[0]) or next(filter(None, map(side_of_name, one.name.split("."))), "")
        if side in sides or count_lines(one) != count_lines(other):
            return None
        sides[side] = one, other
    if len(sides) == 1:
        return {"train": next(iter(sides.values()))}
    return sides if "train" in sides and "" not in sides else None


def pair_in(folder: Path) -> list[Path]:
    """The only pair of files in a folder."""
    pairs = parallel_sides(folder) or {}
    if len(pairs) != 1:
        found = f"{len(pairs)} pairs of files ({', '.join(pairs)})" if pairs else "no two files of parallel text"
        raise UserError(found, where=folder.name, fix="give the two files of one pair")
    return list(pairs["train"])


def languages(files: Sequence[Path]) -> str:
    """The two languages of a pair, for messages."""
    return " to ".join(said[0] if (said := language_of(path)) else path.name for path in files)

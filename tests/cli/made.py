"""Small data sets of every kind, made from a seed: 200 rows with something in them to be learned."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

ROWS = 200
GOOD, BAD = ["good", "great", "lovely", "fine", "bright"], ["bad", "awful", "poor", "sad", "dull"]
THINGS = ["film", "story", "actor", "scene", "ending", "music", "plot"]
PEOPLE = "Anna Ben Clara David Eva Felix".split()
CITIES = "Oslo Rome Paris Berlin Madrid Vienna".split()
NUMBERS = dict(zip("zero one two three four five six seven eight nine".split(),
                   "null eins zwei drei vier fünf sechs sieben acht neun".split(), strict=True))  # fmt: skip


def table(path: Path, names: list[str], rows: Iterable[list[Any]], delimiter: str = ",") -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter, lineterminator="\n")
        writer.writerow(names)
        writer.writerows(rows)
    return path


def opinion(rng: random.Random, good: bool) -> str:
    words = rng.choices(GOOD if good else BAD, k=2) + rng.choices(THINGS, k=4)
    rng.shuffle(words)
    return " ".join(words)


def book(folder: Path) -> Path:
    """Running text of a small grammar."""
    rng = random.Random(0)
    lines = [f"The {rng.choice(GOOD)} {rng.choice(THINGS)} was {rng.choice(BAD)}, said the {rng.choice(THINGS)}."
             for _ in range(ROWS)]  # fmt: skip
    path = folder / "book.txt"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def reviews(folder: Path) -> Path:
    """Texts of two classes."""
    rng = random.Random(1)
    kinds = [rng.random() < 0.5 for _ in range(ROWS)]
    rows = [[opinion(rng, kind), "Good film" if kind else "bad film"] for kind in kinds]
    return table(folder / "reviews.csv", ["text", "label"], rows)


def topics(folder: Path) -> Path:
    """Texts with several labels each, `a;b`."""
    rng = random.Random(2)
    named = {"plot": "story", "music": "sound", "actor": "people"}
    rows = []
    for _ in range(ROWS):
        chosen = [word for word in named if rng.random() < 0.5] or ["plot"]
        words = chosen + rng.choices(GOOD, k=5 - len(chosen))
        rng.shuffle(words)
        rows.append([" ".join(words), ";".join(named[word] for word in chosen)])
    return table(folder / "topics.csv", ["text", "labels"], rows)


def lines(folder: Path) -> Path:
    """One JSON object a line."""
    rng = random.Random(3)
    kinds = [rng.random() < 0.5 for _ in range(ROWS)]
    rows = [json.dumps({"review": opinion(rng, kind), "label": "yes" if kind else "no"}) for kind in kinds]
    path = folder / "rows.jsonl"
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


def tagged(folder: Path) -> Path:
    """Words with tags, CoNLL."""
    rng = random.Random(4)
    sentences = []
    for _ in range(ROWS):
        first, last = rng.choice(["Anna", "Peter", "Paris", "London"]), rng.choice(["Smith", "Jones", "Brown"])
        words = [(first, "B-PER"), (last, "I-PER"), (rng.choice(["saw", "met"]), "O"), (rng.choice(THINGS), "O")]
        words += [("in", "O"), (rng.choice(["Paris", "London", "Rome"]), "B-LOC"), (".", "O")]
        sentences.append("".join(f"{word}\t{tag}\n" for word, tag in words))
    path = folder / "words.conll"
    path.write_text("\n".join(sentences) + "\n", encoding="utf-8")
    return path


def counted(rng: random.Random) -> tuple[str, str]:
    words = rng.choices(list(NUMBERS), k=rng.randint(2, 4))
    return " ".join(words), " ".join(NUMBERS[word] for word in words)


def parallel(folder: Path) -> list[Path]:
    """Two files whose lines belong together, word for word."""
    rng = random.Random(5)
    pairs = [counted(rng) for _ in range(ROWS)]
    paths = [folder / "train.en", folder / "train.de"]
    for path, texts in zip(paths, zip(*pairs, strict=True), strict=True):
        path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return paths


def pairs(folder: Path) -> Path:
    """The same in one file with tabs."""
    rng = random.Random(6)
    return table(folder / "pairs.tsv", ["source", "target"], [list(counted(rng)) for _ in range(ROWS)], "\t")


def flowers(folder: Path) -> Path:
    """A table of three classes, with a category and missing values."""
    rng = random.Random(7)
    rows: list[list[Any]] = []
    for at in range(ROWS):
        kind = rng.randrange(3)
        size = "" if rng.random() < 0.05 else f"{kind + rng.gauss(0, 0.35):.3f}"
        colour = rng.choice(["red", "blue"] if kind == 2 else ["white", "red"])
        rows.append([at, size, f"{2 - kind + rng.gauss(0, 0.5):.3f}", colour, ["iris", "rose", "tulip"][kind]])
    return table(folder / "flowers.csv", ["id", "size", "height", "colour", "kind"], rows)


def houses(folder: Path) -> Path:
    """A table with a number to predict, Parquet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(8)
    rooms, age = rng.integers(1, 8, ROWS), rng.uniform(0, 60, ROWS)
    place = rng.choice(["town", "village"], ROWS)
    price = 50_000.0 * rooms - 800 * age + np.where(place == "town", 90_000, 0) + rng.normal(0, 8_000, ROWS)
    path = folder / "houses.parquet"
    pq.write_table(pa.table({"rooms": rooms, "age": age, "place": place, "price": price}), path)
    return path


def facts(folder: Path, rows: int = ROWS, *, people: int = 2, absent: float = 0.0, seed: int = 9) -> Path:
    """Questions about a context: who lives where. Guessing one of the cities named is right once in `people` times.

    A share of the questions, `absent`, is about somebody whom the context does not name.
    """
    rng = random.Random(seed)
    found: list[list[Any]] = []
    for _ in range(rows):
        names, cities = rng.sample(PEOPLE, people + (absent > 0)), rng.sample(CITIES, people)
        context = " ".join(f"{name} lives in {city}." for name, city in zip(names, cities, strict=False))
        if rng.random() < absent:
            found.append([context, f"Where does {names[-1]} live?", "", ""])
            continue
        asked = rng.randrange(people)
        found.append([context, f"Where does {names[asked]} live?", cities[asked], context.index(cities[asked])])
    return table(folder / "facts.csv", ["context", "question", "answer", "answer_start"], found)


def stripes(upright: bool, rng: np.random.Generator) -> np.ndarray:
    shade = np.where((np.arange(12) + rng.integers(4)) % 4 < 2, 60, 200).astype(np.float64)
    picture = np.broadcast_to(shade[None] if upright else shade[:, None], (12, 12)) + rng.normal(0, 20, (12, 12))
    return picture.clip(0, 255).astype(np.uint8)


def photos(folder: Path) -> Path:
    """One folder a class."""
    from PIL import Image

    rng = np.random.default_rng(9)
    for name in ("down", "across"):
        (folder / "photos" / name).mkdir(parents=True)
        for at in range(ROWS // 2):
            Image.fromarray(stripes(name == "down", rng)).save(folder / "photos" / name / f"{at:03}.png")
    return folder / "photos"


def mixed(folder: Path) -> Path:
    """Text, number, category and the path of a picture in one row."""
    from PIL import Image

    rng, draw = random.Random(10), np.random.default_rng(10)
    (folder / "pictures").mkdir()
    rows: list[list[Any]] = []
    for at in range(ROWS):
        good = rng.random() < 0.5
        Image.fromarray(stripes(good, draw)).save(folder / "pictures" / f"{at}.png")
        town = rng.choice(["Rome", "Oslo"])
        rows.append([opinion(rng, good), f"{good * 2 + rng.gauss(0, 1):.2f}", town, f"pictures/{at}.png", "ny"[good]])
    return table(folder / "mixed.csv", ["text", "size", "town", "picture", "y"], rows)


def reversed_strings(folder: Path, rows: int = 8000, most: int = 12) -> Path:
    """Strings of up to `most` symbols and the same backwards."""
    rng = random.Random(11)
    texts = [[rng.choice("abcdefgh") for _ in range(rng.randint(1, most))] for _ in range(rows)]
    return table(folder / "reverse.tsv", ["source", "target"],
                 [[" ".join(text), " ".join(text[::-1])] for text in texts], "\t")  # fmt: skip


COLOURS = {"red": (220, 40, 40), "green": (40, 180, 60), "blue": (50, 80, 220)}
SHAPES = ("circle", "square")


def draw_shapes(left: tuple[str, str], right: tuple[str, str], rng: np.random.Generator, side: int = 32) -> Any:
    """Two shapes beside each other, each a little off its place, on a grey ground with some noise."""
    from PIL import Image, ImageDraw

    ground = rng.integers(100, 140, (side, side, 3)).astype(np.uint8)
    image = Image.fromarray(ground)
    pen = ImageDraw.Draw(image)
    for at, (colour, shape) in enumerate((left, right)):
        x, y = side * (1 + 8 * at) / 16 + rng.uniform(-1, 1), side * rng.uniform(0.15, 0.45)
        box = (x, y, x + side * 6 / 16, y + side * 6 / 16)
        (pen.ellipse if shape == "circle" else pen.rectangle)(box, fill=COLOURS[colour])
    return image


def captions(folder: Path, rows: int = 600, *, questions: bool = False, sides: tuple[int, ...] = (32,)) -> Path:
    """captions.csv: drawn shapes and a sentence about each; or questions.csv: an image, a question and its answer."""
    rng, places = np.random.default_rng(7), ("left", "right")
    (folder / "shapes").mkdir(exist_ok=True)
    made = []
    for row in range(rows):
        drawn = [(str(rng.choice(list(COLOURS))), str(rng.choice(SHAPES))) for _ in places]
        name = f"shapes/{'q' * questions}{row}.png"
        draw_shapes(drawn[0], drawn[1], rng, side=int(rng.choice(sides))).save(folder / name)
        if questions:
            place, about = int(rng.integers(2)), int(rng.integers(2))
            asked = f"which {('colour', 'shape')[about]} is on the {places[place]}?"
            made.append([name, asked, drawn[place][about]])
        else:
            made.append([name, f"a {' '.join(drawn[0])} left of a {' '.join(drawn[1])}"])
    if questions:
        return table(folder / "questions.csv", ["image", "question", "answer"], made)
    return table(folder / "captions.csv", ["image", "caption"], made)


def colours(folder: Path, rows: int = 240) -> Path:
    """colours.csv: images of one colour, a sentence that names it, and whether the colour is a warm one."""
    from PIL import Image

    rng, shades = np.random.default_rng(3), COLOURS | {"yellow": (220, 200, 40)}
    (folder / "plain").mkdir(exist_ok=True)
    made = []
    for row in range(rows):
        name = str(rng.choice(list(shades)))
        pixels = np.asarray(shades[name]) + rng.normal(0, 15, (16, 16, 3))
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / "plain" / f"{row}.png")
        text = f"{rng.choice(['this picture', 'all of it', 'the whole image'])} is {name} {rng.choice(['here', 'now'])}"
        made.append([f"plain/{row}.png", text, "warm" if name in ("red", "yellow") else "cold"])
    return table(folder / "colours.csv", ["image", "text", "label"], made)

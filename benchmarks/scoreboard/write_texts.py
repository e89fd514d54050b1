"""Sets of text as the files a user would have. `raw` is the folder with the sets as they were published."""

from __future__ import annotations

import csv
import gzip
import io
import json
import lzma
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, cast

Writer = Callable[[Path, Path], None]  # from the raw folder into a folder of its own

SPEAKERS, SHORTEST = 8, 40  # the speakers kept, and the characters of a speech
NAMED_SENTENCES = {"train": 2000, "dev": 500, "test": 1000}


def read_lines(path: Path, encoding: str = "utf-8") -> Iterator[str]:
    """The lines of a file, unpacked; only newlines end them, which `str.splitlines` does not promise."""
    with open_packed(path) as file:
        for line in io.TextIOWrapper(file, encoding, newline="\n"):
            yield line.rstrip("\r\n")


def open_packed(path: Path) -> IO[bytes]:
    if path.suffix == ".xz":
        return lzma.open(path)
    return cast(IO[bytes], gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(rows)


def write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="\n")


# ---------------------------------------------------------------- language models and pairs


def write_shakespeare(raw: Path, out: Path) -> None:
    """The last tenth, on which others validate, tests; what validates is held out of the first nine."""
    text = (raw / "tinyshakespeare" / "input.txt").read_text(encoding="utf-8")
    cut = int(0.9 * len(text))
    write_text(out / "train.txt", text[:cut])
    write_text(out / "test.txt", text[cut:])


def write_wikitext(raw: Path, out: Path) -> None:
    for name in ("train", "valid", "test"):
        with lzma.open(raw / "wikitext2" / f"{name}.txt.xz") as file:
            (out / f"{name}.txt").write_bytes(file.read())


def write_multi30k(raw: Path, out: Path) -> None:
    for name, ours in (("train", "train"), ("val", "valid"), ("test_2016_flickr", "test")):
        for language in ("en", "de"):
            with gzip.open(raw / "multi30k" / f"{name}.{language}.gz") as file:
                (out / f"{ours}.{language}").write_bytes(file.read())


def write_scitldr(raw: Path, out: Path) -> None:
    """Abstract and the first of its summaries."""
    for name, ours in (("train", "train"), ("dev", "valid"), ("test", "test")):
        papers = map(json.loads, read_lines(raw / "scitldr_a" / f"{name}.jsonl.xz"))
        rows = ((" ".join(paper["source"]), paper["target"][0]) for paper in papers)
        write_csv(out / f"{ours}.csv", ("abstract", "summary"), rows)


# ---------------------------------------------------------------- sentences with a label


def write_sst(name: str) -> Writer:
    def write(raw: Path, out: Path) -> None:
        for side, ours in (("train", "train"), ("dev", "valid"), ("test", "test")):
            write_labelled(raw / "textcls" / f"stsa.{name}.{side}.xz", out / f"{ours}.csv")

    return write


def write_trec(raw: Path, out: Path) -> None:
    write_labelled(raw / "textcls" / "TREC.train.all.xz", out / "train.csv", "latin-1")
    write_labelled(raw / "textcls" / "TREC.test.all", out / "test.csv")


def write_labelled(path: Path, out: Path, encoding: str = "utf-8") -> None:
    """`label sentence` lines as a table."""
    parts = (line.split(" ", 1) for line in read_lines(path, encoding) if line)
    write_csv(out, ("text", "label"), ((text, label) for label, text in parts))


def write_cola(raw: Path, out: Path) -> None:
    """Both development files together test, as in GLUE."""
    files = {"train": ["in_domain_train"], "test": ["in_domain_dev", "out_of_domain_dev"]}
    for ours, names in files.items():
        rows = [row for name in names for row in read_tabs(raw / "glue_small" / "CoLA" / f"{name}.tsv.xz")]
        write_csv(out / f"{ours}.csv", ("sentence", "label"), ((row[3], row[1]) for row in rows))


def write_mrpc(raw: Path, out: Path) -> None:
    for name in ("train", "test"):
        path = raw / "glue_small" / "MRPC" / f"msr_paraphrase_{name}.txt.xz"
        rows = list(read_tabs(path, "utf-8-sig"))[1:]
        write_csv(out / f"{name}.csv", ("sentence1", "sentence2", "label"), ((r[3], r[4], r[0]) for r in rows))


def write_rte(raw: Path, out: Path) -> None:
    """The development rows test: those of the test file have no labels."""
    for name, ours in (("train", "train"), ("dev", "test")):
        rows = list(read_tabs(raw / "glue_small" / "RTE" / f"{name}.tsv.xz"))[1:]
        write_csv(out / f"{ours}.csv", ("sentence1", "sentence2", "label"), (row[1:4] for row in rows))


def write_stsb(raw: Path, out: Path) -> None:
    for name, ours in (("train", "train"), ("dev", "valid"), ("test", "test")):
        rows = read_tabs(raw / "glue_small" / "STS-B" / f"sts-{name}.csv.xz")
        write_csv(out / f"{ours}.csv", ("sentence1", "sentence2", "score"), ((r[5], r[6], r[4]) for r in rows))


def read_tabs(path: Path, encoding: str = "utf-8") -> Iterator[list[str]]:
    return (line.split("\t") for line in read_lines(path, encoding) if line)


def write_speakers(raw: Path, out: Path) -> None:
    """Who says it: speeches of the characters who speak most, from tiny Shakespeare."""
    text = (raw / "tinyshakespeare" / "input.txt").read_text(encoding="utf-8")
    speeches = re.findall(r"^([A-Z][A-Za-z ]+):\n((?:.+\n)+)", text, re.MULTILINE)
    rows = [(" ".join(said.split()), who) for who, said in speeches if len(said) >= SHORTEST]
    most = {who for who, _ in Counter(who for _, who in rows).most_common(SPEAKERS)}
    write_csv(out / "speeches.csv", ("text", "label"), (row for row in rows if row[1] in most))


# ---------------------------------------------------------------- tags


def write_ewt(raw: Path, out: Path) -> None:
    """Words and their universal tags; what nobody learns from here is left blank."""
    for name, ours in (("train", "train"), ("dev", "valid"), ("test", "test")):
        lines = []
        for line in read_lines(raw / "ud_english_ewt" / f"en_ewt-ud-{name}.conllu.xz"):
            cells = line.split("\t")
            if len(cells) == 10 and cells[0].isdigit():
                lines.append("\t".join((cells[0], cells[1], "_", cells[3], *"______")))
            elif not line:
                lines.append("")
        write_text(out / f"{ours}.conllu", "\n".join(lines) + "\n")


def write_names(raw: Path, out: Path) -> None:
    """Spans: runs of proper nouns in a few of the sentences, which come from the web, as B-NAME and I-NAME."""
    for name, ours in (("train", "train"), ("dev", "valid"), ("test", "test")):
        sentences = list(read_sentences(raw / "ud_english_ewt" / f"en_ewt-ud-{name}.conllu.xz"))
        chosen = random.Random(0).sample(sentences, NAMED_SENTENCES[name])
        write_text(out / f"{ours}.conll", "\n".join(map(name_spans, chosen)))


def read_sentences(path: Path) -> Iterator[list[tuple[str, str]]]:
    """Words with their universal tags."""
    words: list[tuple[str, str]] = []
    for line in read_lines(path):
        cells = line.split("\t")
        if len(cells) == 10 and cells[0].isdigit() and " " not in cells[1]:
            words.append((cells[1], cells[3]))
        elif not line and words:
            yield words
            words = []


def name_spans(words: list[tuple[str, str]]) -> str:
    """A sentence in CoNLL's columns."""
    lines, inside = [], False
    for word, tag in words:
        lines.append(f"{word} {'I-NAME' if inside and tag == 'PROPN' else 'B-NAME' if tag == 'PROPN' else 'O'}")
        inside = tag == "PROPN"
    return "\n".join(lines) + "\n"

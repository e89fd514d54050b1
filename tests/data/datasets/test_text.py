"""Running text: read, split, tokenised and packed; what it promises, each with a control that goes red."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from anyformer.data.datasets import corpus
from anyformer.data.datasets.text import boundary, prepare_text, prepare_texts, window
from anyformer.data.datasets.windows import Windows
from anyformer.data.files import documents
from anyformer.data.prepared import DataRequest, Prepared, StartModelConstraints
from anyformer.data.settings import Data, Split, TokenizerSettings
from anyformer.data.tokenizers.fast_encode import Encoder
from anyformer.data.tokenizers.tokenizer import open_tokenizer, train_tokenizer
from anyformer.errors import UserError

WORDS = "the of a rose is by any other name would smell as sweet Ä ö 漢字 don't 3.14 (x)".split(" ")


def prose(characters: int, seed: int = 0) -> str:
    """Text with lines, empty lines, indentation and letters of several scripts."""
    random = np.random.default_rng(seed)
    made, size = [], 0
    while size < characters:
        line = " " * int(random.integers(4)) + " ".join(random.choice(WORDS, int(random.integers(1, 12))))
        made.append(line + "\n" * int(random.integers(1, 3)))
        size += len(made[-1])
    return "".join(made)[:characters]


def ready(paths: object, cache: Path, data: Data | None = None, given: StartModelConstraints | None = None) -> Prepared:
    listed = paths if isinstance(paths, list) else [paths]
    said: list[str] = []
    request = DataRequest(listed, data or Data(), cache, given=given or StartModelConstraints(), log=said.append)
    made = prepare_text(request, task="lm")
    assert made.notes == said
    return made


def ids(side: object) -> np.ndarray:
    assert isinstance(side, Windows)
    return side.ids


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="")
    return path


def texts(made: Prepared) -> tuple[str, str]:
    assert made.tokenizer is not None
    train, valid = (made.tokenizer.decode(ids(side).tolist(), skip_special=False) for side in (made.train, made.valid))
    return train, valid


@pytest.mark.quick
@pytest.mark.parametrize("kind", ["auto", "char", "byte"])
def test_the_tokens_are_the_whole_file(tmp_path: Path, kind: str) -> None:
    text = prose(30_000) + "\r\nend </s> <pad>\t\x1f\u2028  \n"
    made = ready(
        written(tmp_path, "a book.txt", text),
        tmp_path / "c",
        Data(tokenizer=TokenizerSettings.from_dict({"kind": kind})),
    )
    train, valid = texts(made)
    cut = int(0.9 * len(text))
    assert train == text[:cut]
    if kind == "char":  # what training has not seen is unknown, and said
        assert valid.replace("<unk>", "?") != text[cut:]
        assert any("tokens are unknown" in note for note in made.notes)
    else:
        assert valid == text[cut:]
    assert made.facts["parts"]["train"]["bytes"] == len(text[:cut].encode())
    assert made.facts["parts"]["valid"]["bytes"] == len(text[cut:].encode())
    assert made.task == "lm" and made.test is None


def test_the_tokenizer_sees_no_validation_text(tmp_path: Path) -> None:
    text = prose(20_000)
    cut = int(0.9 * len(text))
    other = "z" * (len(text) - cut)

    def mark(name: str, body: str) -> str:
        made = ready(written(tmp_path, name, body), tmp_path / f"c-{name}")
        assert made.tokenizer is not None
        return made.tokenizer.sha256

    assert mark("a.txt", text) == mark("b.txt", text[:cut] + other)
    assert mark("a.txt", text) != mark("c.txt", other + text[len(other) :])  # the control: training text does count


@pytest.mark.parametrize("kind", ["bpe", "char", "byte"])
def test_the_fast_encoder_equals_the_tokenizer(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(5)
    letters = list("ab cd\n\n\t  \r'sÄ漢🎉1 2.</s>\x1c\x85\u00a0\u2028\u3000\x00")
    odd = ["".join(random.choice(letters, 300)) for _ in range(200)]
    tokenizer = train_tokenizer([prose(20_000), *odd[:50]], kind, 2**16 if kind == "char" else 700)  # type: ignore[arg-type]
    pieces = [prose(5_000, 3), *odd, "", " ", "\n", " a", "a ", "\n\nb"]
    expected = tokenizer.encode_batch(pieces, special=False)
    encoder = Encoder(tokenizer, kind)
    assert [row.tolist() for row in encoder.encode(pieces)] == expected
    assert [row.tolist() for row in encoder.encode(pieces)] == expected  # from memory
    monkeypatch.setattr("anyformer.data.tokenizers.fast_encode.MOST", 100)
    assert [row.tolist() for row in encoder.encode(pieces)] == expected  # after forgetting


def test_a_wrong_rule_of_words_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    import re

    tokenizer = train_tokenizer([prose(20_000)], "bpe", 700)
    monkeypatch.setattr("anyformer.data.tokenizers.fast_encode.WORDS", re.compile(r"(?=e)"))
    text = prose(2_000, 1)
    assert Encoder(tokenizer, "bpe").encode([text])[0].tolist() != tokenizer.encode(text, special=False)


@pytest.mark.parametrize("kept", [2**26, 0])
def test_pieces_are_the_text_and_do_not_change_its_tokens(
    tmp_path: Path, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "PIECE", 500)
    monkeypatch.setattr(documents, "KEPT", kept)
    monkeypatch.setattr(documents, "BLOCK", 777)  # blocks that end inside letters
    text = prose(20_000)
    path = written(tmp_path, "t.txt", text)
    (document,), _ = documents.read_documents([path], Data().format)
    assert (document.text is None) == (kept == 0)
    pieces = list(document.pieces())
    assert len(pieces) > 15 and max(map(len, pieces)) <= 1000
    assert "".join(pieces) == text
    assert "".join(document.pieces(3_333, 17_001)) == text[3_333:17_001]
    tokenizer = train_tokenizer([text], "bpe", 700)
    rows = tokenizer.encode_batch(pieces, special=False)
    assert [i for row in rows for i in row] == tokenizer.encode(text, special=False)


def test_text_without_blanks_is_cut_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "PIECE", 100)
    assert [len(piece) for piece in documents.cut(["a" * 450])] == [200, 200, 50]


def test_packing_equals_a_loop_over_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "PIECE", 300)
    monkeypatch.setattr(corpus, "AT_ONCE", 1000)
    folder = tmp_path / "docs"
    bodies = {f"{i:02}.txt": prose(1500 + 100 * i, i) for i in range(10)}
    for name, body in bodies.items():
        written(folder, name, body)
    made = ready(folder, tmp_path / "c")
    tokenizer = made.tokenizer
    assert tokenizer is not None and tokenizer.eos is not None
    cut = boundary(documents.read_documents([folder], Data().format)[0], 0.9)
    naive: dict[str, list[int]] = {"train": [], "valid": []}
    at = 0
    for body in bodies.values():
        side = naive["train" if at < cut else "valid"]
        side += ([tokenizer.eos] if side else []) + tokenizer.encode(body, special=False)
        at += len(body)
    assert ids(made.train).tolist() == naive["train"]
    assert ids(made.valid).tolist() == naive["valid"]
    assert naive["valid"]


def test_where_several_texts_are_split() -> None:
    def docs(*sizes: int, text: str = "line\n") -> list[documents.Document]:
        bodies = [(text * size)[:size] for size in sizes]
        return documents.in_memory(bodies, "t", "row")

    assert boundary(docs(1000), 0.9) == 900  # one text: the very character
    assert boundary(docs(500, 420, 80), 0.9) == 920  # between two documents
    assert boundary(docs(500, 500), 0.9) == 905  # no boundary near: the end of the line
    assert boundary(docs(500, 500, text="x"), 0.9) == 900  # nor a line
    assert boundary(docs(*[10] * 100), 0.9) == 900


def test_valid_and_test_files(tmp_path: Path) -> None:
    train, valid, test = (prose(size, size) for size in (9000, 3000, 2000))
    paths = [written(tmp_path, f"{name}.txt", body) for name, body in zip("abc", (train, valid, test), strict=True)]
    data = Data(split=Split(valid_file=(str(paths[1]),), test_file=(str(paths[2]),)))
    made = ready(paths[0], tmp_path / "c", data)
    assert texts(made) == (train, valid)
    assert isinstance(made.test, Windows) and made.test.bytes == len(test.encode())
    same = Data(split=Split(valid_file=(str(paths[0]),)))
    assert any(
        n.startswith("warning  a.txt to valid on: the same text") for n in ready(paths[0], tmp_path / "d", same).notes
    )
    assert not any("warning" in note for note in made.notes)
    assert ready(paths[0], tmp_path / "e", Data(split=Split(valid=0.0))).valid is None


def test_a_folder_of_files(tmp_path: Path) -> None:
    folder = tmp_path / "Bücher 書"
    written(folder, "b.md", "# B\n" + prose(2000, 1))
    written(folder, "a/ä.py", "x = 1\n" + prose(2000, 2))
    written(folder, ".git/config", "hidden")
    written(folder, ".hidden.txt", "hidden")
    written(folder, "empty.txt", "")
    (folder / "photo.jpg").write_bytes(b"\xff\xd8\xff\xe0" + bytes(range(256)))
    (folder / "data.bin").write_bytes(bytes(range(256)) * 10)
    (folder / "lost.txt").symlink_to("nowhere")
    (folder / "c.txt.gz").write_bytes(gzip.compress(("gz\n" + prose(2000, 3)).encode()))
    made = ready(folder, tmp_path / "c")
    assert [source["name"] for source in made.facts["sources"]] == ["b.md", "c.txt.gz", "a/ä.py"]
    assert sum(made.facts["skipped"].values()) == 4
    notes = "\n".join(made.notes)
    for name in ("photo.jpg", "data.bin", "empty.txt", "lost.txt"):
        assert name in notes
    assert "hidden" not in notes and "gzip" in notes
    assert made.train.place(0) == "b.md, about character 1"


def test_texts_from_a_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [prose(200, i) for i in range(40)]

    def run(name: str) -> Prepared:
        lazy = (row for pair in zip(rows, [""] * 40, strict=True) for row in pair)
        return prepare_texts(DataRequest(lazy, Data(), tmp_path / name), task="lm", name="t.jsonl")

    made = run("a")
    assert made.train.place(0) == "t.jsonl row 1, about character 1"
    assert made.tokenizer is not None
    assert "".join(rows).startswith(made.tokenizer.decode(ids(made.train)[:50].tolist()))
    assert int((ids(made.train) == made.tokenizer.eos).sum()) == 35  # between 36 texts
    monkeypatch.setattr(documents, "KEPT", 1000)  # the rest waits on disk
    assert ids(run("b").train).tolist() == ids(made.train).tolist()
    apart = prepare_texts(DataRequest(rows, Data(), tmp_path / "d"), task="lm", valid=["unseen " * 9, rows[0]])
    assert isinstance(apart.valid, Windows) and apart.valid.place(0).startswith("valid row 1")
    assert any(note.startswith("warning  valid row 2 to valid on") for note in apart.notes)
    assert apart.valid.bytes == 63 + len(rows[0].encode())
    with pytest.raises(UserError, match="no text in it"):
        prepare_texts(DataRequest([""], Data(), tmp_path / "c"), task="lm")
    with pytest.raises(UserError, match="row 2: half a character"):
        prepare_texts(DataRequest(["a", "\ud800"], Data(), tmp_path / "c"), task="lm")


def test_the_cache_is_used_only_for_the_same_text_and_settings(tmp_path: Path) -> None:
    path, cache = written(tmp_path, "t.txt", prose(9000)), tmp_path / "c"
    first = ready(path, cache)
    again = ready(path, cache)
    assert any(note.startswith("disk     packed before") for note in again.notes)
    assert not any(note.startswith("disk     packed before") for note in first.notes)
    assert ids(first.train).tolist() == ids(again.train).tolist()
    assert first.tokenizer is not None and again.tokenizer is not None
    assert first.tokenizer.sha256 == again.tokenizer.sha256
    longer = Data(tokenizer=TokenizerSettings(max_length=32))  # windows are cut later: the arrays stay
    assert any(note.startswith("disk     packed before") for note in ready(path, cache, longer).notes)
    for data in (Data(tokenizer=TokenizerSettings(vocab_size=600)), Data(split=Split(valid=0.2)), Data()):
        assert not any(note.startswith("disk     packed before") for note in ready(path, cache, data).notes)
    written(tmp_path, "t.txt", prose(9000, 1))
    changed = ready(path, cache)
    assert not any(note.startswith("disk     packed before") for note in changed.notes)
    kept = ids(changed.train).tolist()
    (cache / "train.npy").write_bytes((cache / "train.npy").read_bytes()[:-1] + b"\x07")
    repaired = ready(path, cache)
    assert ids(repaired.train).tolist() == kept


def test_the_same_text_gives_the_same_bytes(tmp_path: Path) -> None:
    path = written(tmp_path, "t.txt", prose(50_000))
    for name in ("a", "b"):
        ready(path, tmp_path / name)
    for file in ("train.npy", "valid.npy", "train_marks.npy", "tokenizer/tokenizer.json"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_a_given_tokenizer_is_kept(tmp_path: Path) -> None:
    path = written(tmp_path, "t.txt", prose(9000))
    own = train_tokenizer([prose(5000, 9)], "bpe", 300)
    made = ready(path, tmp_path / "c", given=StartModelConstraints(tokenizer=own, length=20))
    assert made.tokenizer is own
    assert isinstance(made.train, Windows) and made.train.length == 20
    kept = open_tokenizer(tmp_path / "c" / "tokenizer")
    assert kept is not None and kept.encode("a rose") == own.encode("a rose")
    own.save(tmp_path / "tok")
    folder = ready(path, tmp_path / "d", Data(tokenizer=TokenizerSettings(folder=str(tmp_path / "tok"))))
    assert ids(folder.train).tolist() == ids(made.train).tolist()
    with pytest.raises(UserError, match=r"data\.tokenizer\.folder: no tokenizer in"):
        ready(path, tmp_path / "e", Data(tokenizer=TokenizerSettings(folder=str(tmp_path / "none"))))


def test_a_big_text_trains_its_tokenizer_on_a_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "SAMPLE", 5_000)
    monkeypatch.setattr(documents, "PIECE", 300)
    made = ready(written(tmp_path, "t.txt", prose(50_000)), tmp_path / "c")
    (note,) = [note for note in made.notes if "spread over" in note]
    assert 2_000 < int(note.split("trained on ")[1].split(" ")[0].replace(",", "")) < 8_000
    assert texts(made)[0] == prose(50_000)[:45_000]


def test_how_long_windows_are() -> None:
    said: list[str] = []
    assert window(TokenizerSettings(), StartModelConstraints(), 100_000, said.append) == 256
    assert window(TokenizerSettings(max_length=512), StartModelConstraints(), 100_000, said.append) == 512
    assert window(TokenizerSettings(), StartModelConstraints(length=64), 100_000, said.append) == 64
    assert not said
    assert window(TokenizerSettings(max_length=512), StartModelConstraints(length=64), 100_000, said.append) == 64
    assert window(TokenizerSettings(), StartModelConstraints(), 500, said.append) == 32
    assert window(TokenizerSettings(max_length=100), StartModelConstraints(), 60, said.append) == 59
    assert len(said) == 3 and "windows of 32 tokens instead of 256" in said[1]


@pytest.mark.parametrize("text", ["hello", "hello " * 4, "a" * 35])
def test_next_to_nothing_is_refused_with_the_count_and_nothing_written(tmp_path: Path, text: str) -> None:
    with pytest.raises(UserError, match=r"only \d+ (characters|tokens) to train on") as caught:
        ready(written(tmp_path, "t.txt", text), tmp_path / "c")
    assert len(caught.value.line) <= 300
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("none.txt", None, "no such file"),
        ("empty.txt", b"", "empty"),
        ("photo.txt", b"\x89PNG\r\n\x1a\n" + bytes(100), "PNG"),
        ("zeros.txt", b"abc\0def" * 100, "NUL|binary|text"),
        ("cut.txt.gz", gzip.compress(prose(5000).encode())[:200], "cut short"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, name: str, content: bytes | None, words: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=words) as caught:
        ready(tmp_path / name, tmp_path / "c")
    assert name in caught.value.line and len(caught.value.line) <= 300
    assert not (tmp_path / "c").exists()


def test_a_folder_without_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "a.bin").write_bytes(bytes(range(256)) * 4)
    with pytest.raises(UserError, match=r"x: no text in it \(1 "):
        ready(tmp_path / "x", tmp_path / "c")


def test_too_small_a_vocabulary_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, "t.txt", prose(3000))
    with pytest.raises(UserError, match=r"data\.tokenizer\.vocab_size: .*use at least 259"):
        ready(path, tmp_path / "c", Data(tokenizer=TokenizerSettings(vocab_size=100)))

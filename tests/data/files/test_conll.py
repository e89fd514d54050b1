"""Tagged words and pairs of texts are read exactly, and what is left out is counted."""

from __future__ import annotations

import gzip
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anyformer.data.files.conll import conll_text, read_conll
from anyformer.data.files.parallel_text import read_pairs
from anyformer.data.settings import Format
from anyformer.errors import UserError
from anyformer.evaluation.answers import Answers
from anyformer.tasks import find
from tests.data.files.bad_tables import written
from tests.data.files.bad_texts import UNIVERSAL, WORDS, both

PLAIN = Format()


@pytest.mark.quick
def test_words_and_tags_are_read_from_the_last_column(tmp_path: Path) -> None:
    text = "-DOCSTART- -X- O\n\n" + WORDS + "# a comment\n" + "One CD O\r\n" + "# NN B-MISC\n"
    frame = read_conll(written("a.txt", text)(tmp_path), PLAIN)
    assert frame.table.to_pydict() == {
        "words": [["The", "EU", "rejects"], ["Peter", "sleeps"], ["One", "#"]],
        "tags": [["O", "B-ORG", "O"], ["B-PER", "O"], ["O", "B-MISC"]],
    }  # fmt: skip
    assert frame.sources[0].notes == ("CoNLL, tags from column 3 of 3",) and frame.place(1) == "a.txt sentence 2"
    assert read_conll(written("a.txt", WORDS)(tmp_path), PLAIN, column=2).column("tags").to_pylist()[1] == [
        "NNP",
        "VBZ",
    ]
    assert read_conll(written("a.txt", WORDS)(tmp_path), PLAIN, column="-1").column("tags")[1].as_py() == ["B-PER", "O"]


@pytest.mark.parametrize(
    "column, tags", [(None, ["PRON", "AUX", "PART"]), ("xpos", ["P", "A", "R"]), (8, ["a", "b", "c"])]
)
def test_universal_columns_have_names_and_words_numbers(column, tags, tmp_path: Path) -> None:
    lines = ["# sent_id = 1", "1\tI\ti\tPRON\tP\t_\t2\ta\t_\t_", "2-3\tcannot\t_\t_\t_\t_\t_\t_\t_\t_",
             "2\tcan\tcan\tAUX\tA\t_\t0\tb\t_\t_", "3\tnot\tnot\tPART\tR\t_\t2\tc\t_\t_",
        "3.1\tgo\tgo\tVERB\tV\t_\t_\t_\t_\t_"]  # fmt: skip
    frame = read_conll(written("a.conllu", "\n".join(lines) + "\n\n")(tmp_path), PLAIN, column=column)
    assert frame.column("words").to_pylist() == [["I", "can", "not"]]
    assert frame.column("tags").to_pylist() == [tags]


def test_sentences_used_and_left_out_are_those_of_the_files(tmp_path: Path) -> None:
    one = written("one.conll", WORDS + "broken line\n\n" + WORDS)(tmp_path)
    two = written("two.conll.gz", gzip.compress(WORDS.encode()))(tmp_path)
    frame = read_conll(one + two, PLAIN)
    assert len(frame) + sum(frame.skipped.values()) == sum(source.rows for source in frame.sources) == 7
    assert [frame.place(at) for at in (2, 4)] == ["one.conll sentence 4", "two.conll.gz sentence 1"]
    assert frame.skipped_at == {"a line with too few or too many fields": ("one.conll sentence 3",)}
    assert "gzip" in frame.sources[1].notes


WORD = st.text(st.characters(blacklist_categories=("Cs", "Cc", "Z")), min_size=1, max_size=6).filter(
    lambda word: not word.startswith("-DOCSTART-") and not any(letter.isspace() for letter in word)
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.lists(st.tuples(WORD, st.sampled_from(["O", "B-X", "I-X"])), min_size=1, max_size=5), min_size=1, max_size=5
    )
)
def test_what_is_written_is_read_again(tmp_path: Path, sentences) -> None:
    words, tags = ([[pair[at] for pair in sentence] for sentence in sentences] for at in (0, 1))
    (tmp_path / "a.conll").write_text(conll_text(words, tags), encoding="utf-8", newline="\n")
    frame = read_conll([tmp_path / "a.conll"], PLAIN)
    assert frame.column("words").to_pylist() == words and frame.column("tags").to_pylist() == tags


@pytest.mark.quick
def test_predicted_tags_are_read_again_whatever_stands_in_a_word(tmp_path: Path) -> None:
    """What a model answers: a tab or the end of a line in a word does not make it two."""
    sentences = [["New\tYork", "is"], ["a\nb", "c\r\nd", "e"]]
    tags = [["B-X", "O"], ["O", "B-X", "O"]]
    preprocess: Any = SimpleNamespace(columns=(SimpleNamespace(name="words"),))
    examples = SimpleNamespace(cells=lambda row: {"words": sentences[row]})
    text = find("tag").to_conll(Answers("tag", tags, tags, examples=examples), preprocess)
    (tmp_path / "a.conll").write_text(text, encoding="utf-8", newline="\n")
    frame = read_conll([tmp_path / "a.conll"], PLAIN)
    assert frame.column("words").to_pylist() == [["New York", "is"], ["a b", "c  d", "e"]]
    assert frame.column("tags").to_pylist() == tags
    # The control: joined as they are, the words of the same answer are other lines.
    plain = "\n".join(f"{word}\t{tag}" for word, tag in zip(sentences[1], tags[1], strict=True))
    assert plain.count("\n") > len(sentences[1]) - 1


def test_words_without_tags_are_not_written() -> None:
    with pytest.raises(UserError, match="sentence 2: 2 words but 1 tags"):
        conll_text([["a"], ["b", "c"]], [["O"], ["O"]])


def test_universal_sample_opens_by_default(tmp_path: Path) -> None:
    frame = read_conll(written("a.conllu", UNIVERSAL)(tmp_path), PLAIN)
    assert frame.column("tags").to_pylist() == [["PRON", "VERB"]]
    assert frame.sources[0].notes == ("CoNLL-U, tags from upos",)


# ---------------------------------------------------------------- pairs


@pytest.mark.quick
def test_two_files_are_read_line_by_line(tmp_path: Path) -> None:
    frame = read_pairs(both("a\n\nc\u2028d\r\ne\n", b"x\ny\nz\n\xe9\n")(tmp_path), PLAIN)
    assert frame.table.to_pydict() == {"source": ["a", "c\u2028d", "e"], "target": ["x", "z", "é"]}
    assert frame.skipped == {"an empty source": 1} and frame.sources[1].notes == ("Latin-1",)
    assert len(frame) + sum(frame.skipped.values()) == sum(source.rows for source in frame.sources)
    assert [frame.place(at) for at in range(3)] == ["a.en line 1", "a.en line 3", "a.en line 4"]


@pytest.mark.parametrize("header", ["en\tde\n", "id\tsource\ttarget\n", ""])
def test_one_table_holds_both_sides(header: str, tmp_path: Path) -> None:
    number = "id" in header
    rows = [(f"{at}\t" if number else "") + f"This is sentence {at}.\tDas ist Satz {at}." for at in range(30)]
    frame = read_pairs(written("a.tsv", header + "\n".join(rows) + "\n")(tmp_path), PLAIN)
    assert frame.names == ["source", "target"] and len(frame) == 30
    assert frame.cells(3) == {"source": "This is sentence 3.", "target": "Das ist Satz 3."}
    assert frame.place(0) == f"a.tsv row {2 if header else 1}"


def test_rows_with_one_side_are_left_out(tmp_path: Path) -> None:
    frame = read_pairs(written("a.tsv", "source\ttarget\na b\tx y\nc\t\n\tz\nshort\nd\tw\n")(tmp_path), PLAIN)
    assert frame.column("source").to_pylist() == ["a b", "d"]
    assert frame.skipped == {"too few fields": 1, "an empty target": 1, "an empty source": 1}
    assert len(frame) + sum(frame.skipped.values()) == frame.sources[0].rows
    assert frame.place(1) == "a.tsv row 6"

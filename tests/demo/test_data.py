"""The demo's text is fixed: the same files each time, and none of them on both sides."""

from __future__ import annotations

import gzip

import pytest

from anyformer.demo import data
from anyformer.errors import UserError


@pytest.fixture(scope="module")
def text():
    return data.corpus()


def test_the_corpus_is_the_same_twice(text):
    again = data.corpus()
    assert again == text and again.training_text == text.training_text


def test_no_held_out_file_is_learned_from(text):
    assert not set(data.HELD_OUT_FILES) & set(data.TRAINING_FILES)
    assert not set(text.held_out) & set(text.training)
    for name, held in text.held_out.items():
        assert held[:2000] not in text.training_text, name


def test_it_is_about_two_megabytes_from_the_library_itself(text):
    assert 1_900_000 <= text.training_bytes <= data.TRAINING_BYTES
    assert 50_000 <= text.held_out_bytes <= 200_000
    assert len(text.held_out) == len(data.HELD_OUT_FILES)
    assert not any("site-packages" in name or name.startswith(("/", "..")) for name in text.training)
    assert len(data.TRAINING_FILES) == len(set(data.TRAINING_FILES))


def test_gzip_is_what_gzip_says(text):
    packed = gzip.compress(text.held_out_text.encode(), 9)
    assert text.gzip_bits() == pytest.approx(8 * len(packed) / text.held_out_bytes)
    assert 1.0 < text.lzma_bits() < text.gzip_bits() < 3.0


def test_the_text_is_written_file_by_file_and_no_byte_is_lost(text, tmp_path):
    learned, held_out = text.write(tmp_path / "text")
    for folder, texts in ((learned, text.training), (held_out, text.held_out)):
        written = {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
        assert written == {name: body.encode() for name, body in texts.items()}


def test_a_python_without_sources_is_one_clear_error(tmp_path):
    with pytest.raises(UserError, match="installed with its"):
        data.corpus(tmp_path)

"""Text from data never acts on a terminal and never forges a line of a log."""

from __future__ import annotations

import sys

import pytest

from anyformer.plain_text import printable

BIDI = [*range(0x200E, 0x2010), *range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x61C]


@pytest.mark.quick
@pytest.mark.parametrize(
    "text, expected",
    [
        ("plain words", "plain words"),
        ("Größe 大きさ سلام 👩‍🔬", "Größe 大きさ سلام 👩‍🔬"),
        ("C:\\data\\new", "C:\\data\\new"),
        ("a\u00a0b", "a\u00a0b"),
        ("", ""),
        ("one\nerror: two", "one\\nerror: two"),
        ("\x1b[2J", "\\x1b[2J"),
        ("\x9b31m", "\\x9b31m"),
        ("a\r\tb\x7f", "a\\r\\tb\\x7f"),
        ("file\u202egnp.exe", "file\\u202egnp.exe"),
        ("line\u2028break", "line\\u2028break"),
        ("name\udcff", "name\\udcff"),
        ("tag\U000e0041", "tag\\U000e0041"),
    ],
)
def test_what_acts_is_escaped_and_the_rest_stays(text, expected):
    assert printable(text) == expected


@pytest.mark.quick
def test_no_character_of_unicode_acts():
    every = "".join(chr(code) for code in range(sys.maxunicode + 1))
    safe = printable(every)
    assert len(safe.splitlines()) == 1
    safe.encode("utf-8")  # no lone surrogate is left
    active = {*range(0x20), *range(0x7F, 0xA0), *BIDI, *range(0xD800, 0xE000)}
    assert not active & {ord(character) for character in safe}
    assert printable(safe) == safe


def test_control_the_same_text_unescaped_has_many_lines():
    assert len("".join(chr(code) for code in range(0x3000)).splitlines()) > 5

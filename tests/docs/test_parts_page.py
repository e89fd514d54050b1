"""docs/parts.md is what the code says: every part is in it, with a picture that the part itself made."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from anyformer import Attention, Mixer, Plain
from docs.part_pictures import moved, picture
from docs.parts import PAGE, first_sentence, image, page, parts, row, sample_of
from tests.laws.nets import numbers
from tests.laws.parts import named


def test_the_page_is_up_to_date() -> None:
    """After a change of a part: python -m docs.parts"""
    assert PAGE.read_text(encoding="utf-8") == page()


def test_every_part_is_on_it_with_formula_source_cost_and_picture() -> None:
    listed = parts()
    assert len(listed) >= 55 and {type(spec) for spec in named(Mixer).values()} <= {part for _, part in listed}
    for slot, part in listed:
        cells = row(slot, part).strip("| ").replace("\\|", "/").split(" | ")
        assert len(cells) == 8 and all(cells), part
        assert image(part).is_file(), f"no picture of {part.__name__}: python -m docs.parts"


def test_no_description_is_cut() -> None:
    for _, part in parts():
        doc, told = " ".join((part.__doc__ or "").split()), first_sentence(part.__doc__ or "")
        assert told.endswith(".") and doc.startswith(told), (part.__name__, told)
        assert told == doc or doc[len(told)] == " ", (part.__name__, told)
        for opened, closed in ("()", "[]", "{}"):
            assert told.count(opened) == told.count(closed), (part.__name__, told)
        assert told.count("`") % 2 == 0, (part.__name__, told)


def test_a_part_that_says_nothing_of_itself_is_noticed() -> None:
    class Mute(Plain):
        """A part without a word."""

        about = None

    with pytest.raises(ValueError, match="says nothing about itself"):
        row("mixer", Mute)


@pytest.mark.parametrize("name", ["Attention", "Local", "Pooled", "Sinusoid", "Stack"])
def test_pictures_are_what_the_parts_draw_today(name: str) -> None:
    part = next(part for _, part in parts() if part.__name__ == name)
    sample = sample_of(part)
    drawn = None if sample is None else picture(sample)
    assert drawn is not None
    kept = np.asarray(Image.open(image(part)).convert("RGB"), dtype=int)
    assert kept.shape == np.asarray(drawn).shape
    assert np.abs(kept - np.asarray(drawn, dtype=int)).max() <= 2  # another machine rounds otherwise


def test_a_picture_shows_who_moves_whom() -> None:
    """The control: a causal mixer's upper half is blank and another's is not."""
    shades = np.asarray(picture(Attention(heads=4)), dtype=int).sum(-1)
    side = shades.shape[0]
    causal, open_ = shades[:, :side], shades[:, -side:]
    blank = causal.max()
    assert causal[10, side - 10] == blank and open_[10, side - 10] < blank and causal[side - 10, 10] < blank
    assert moved(lambda x: x.cumsum(1), numbers(1, 5, 3)).triu(1).abs().max() == 0.0

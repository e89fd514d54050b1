"""The public names are frozen: a new or lost one is a change of this folder's list, seen in review."""

from __future__ import annotations

from pathlib import Path

import anyformer

FROZEN = Path(__file__).with_name("public_names.txt")


def test_public_names_are_the_frozen_ones():
    now, frozen = set(anyformer.__all__), set(FROZEN.read_text().split())
    assert now == frozen, f"new: {sorted(now - frozen)}; lost: {sorted(frozen - now)}; if meant, edit {FROZEN.name}"


def test_the_list_is_sorted_and_holds_each_name_once():
    names = FROZEN.read_text().split()
    assert names == sorted(set(names))


def test_every_public_name_exists_and_says_what_it_is():
    undocumented = []
    for name in anyformer.__all__:
        value = getattr(anyformer, name)
        if name != "__version__" and not (value.__doc__ or "").strip():
            undocumented.append(name)
    assert not undocumented, undocumented
    assert set(anyformer.__all__) <= set(dir(anyformer))


def test_control_an_unknown_name_is_an_error():
    try:
        anyformer.Modell  # noqa: B018
    except AttributeError as error:
        assert "Modell" in str(error)
    else:
        raise AssertionError("anyformer.Modell should not exist")

"""The public names are frozen: a new or lost one is a change of this folder's list, seen in review."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

import anyformer
from anyformer.deprecated_names import DEPRECATED, Renamed, is_long_enough, minor

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


# ---------------------------------------------------------------- renamed names


def outdated(names: dict[str, Renamed], version: str) -> list[str]:
    """Entries that should be gone by this version, promise too little, or lead nowhere."""
    return [
        name for name, entry in names.items()
        if minor(version) >= minor(entry.gone_in) or not is_long_enough(entry)
        or entry.now not in anyformer.__all__ or name in anyformer.__all__
    ]  # fmt: skip


def test_no_old_name_outlives_its_last_version() -> None:
    assert not outdated(DEPRECATED, anyformer.__version__), "remove it, and say so in CHANGELOG.md"


@pytest.mark.parametrize(
    "entry",
    [
        Renamed("Model", "0.1.0", "0.2.0"),  # one minor version is too short
        Renamed("Model", "0.1.0", "0.3.0"),  # over by now
        Renamed("Modell", "0.4.0", "0.6.0"),  # no such name
    ],
)
def test_control_a_bad_entry_is_seen(entry: Renamed) -> None:
    assert outdated({"OldModel": entry}, "0.4.0") == ["OldModel"]
    assert not outdated({"OldModel": Renamed("Model", "0.4.0", "0.6.0")}, "0.5.1")


def test_an_old_name_works_and_warns_where_it_was_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DEPRECATED, "OldModel", Renamed("Model", "0.2.0", "0.4.0"))
    with pytest.warns(FutureWarning, match=r"anyformer\.OldModel is called anyformer\.Model since 0\.2\.0") as seen:
        assert anyformer.OldModel is anyformer.Model
    assert seen[0].filename == __file__
    with warnings.catch_warnings():  # control: a name of today says nothing
        warnings.simplefilter("error")
        assert anyformer.Model


def test_say_is_an_old_name_of_log(tmp_path: Path) -> None:
    table = {"text": ["good", "bad"] * 8, "label": ["yes", "no"] * 8}
    ours: list[str] = []
    theirs: list[str] = []
    with warnings.catch_warnings():  # control: the name of today says nothing
        warnings.simplefilter("error")
        anyformer.prepare(table, cache=tmp_path / "a", log=ours.append)
    with pytest.warns(FutureWarning, match="say is called log since 0.2.0") as seen:
        anyformer.prepare(table, cache=tmp_path / "b", say=theirs.append)
    assert seen[0].filename == __file__ and theirs == ours and len(ours) > 3
    with pytest.warns(FutureWarning, match="say is called log"):
        anyformer.plan("gpt2", batch=1, length=8, say=theirs.append)
    with pytest.warns(FutureWarning, match="say is called log"), pytest.raises(anyformer.UserError):
        anyformer.resume(tmp_path / "nowhere", say=theirs.append)

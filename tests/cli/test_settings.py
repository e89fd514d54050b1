"""`anyformer settings`: every setting, each with a sentence, and by the path that --set takes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from anyformer.cli import main
from anyformer.slots import Mixer
from anyformer.spec import Spec, subclasses
from anyformer.training.setup.setting_paths import is_setting, setting_paths
from anyformer.training.setup.settings_list import field_sentences, list_settings


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["settings", *words]) == 0
    return capsys.readouterr().out


def test_every_setting_has_a_sentence() -> None:
    found = list_settings()
    assert len(found) > 300
    ours = {kind.__name__ for kind in subclasses(Spec) if kind.__module__.startswith("anyformer.")}
    silent = [f"{one.part}.{one.path.rpartition('.')[2]}" for one in found
              if one.part in ours and not one.about.endswith(".")]  # fmt: skip
    assert not silent, f"write a string below these fields: {silent}"
    assert all(is_setting(one.path) for one in found)


def test_every_part_and_name_of_a_setting_is_listed() -> None:
    listed = {one.path.rpartition(".")[2] for one in list_settings()}
    assert {path.rpartition(".")[2] for path in setting_paths()} <= listed


def test_control_a_field_without_a_sentence_is_seen() -> None:
    class Silent(Mixer):
        """A part whose second field says nothing."""

        told: int = 1
        """What the first field is."""
        silent: int = 2

    assert field_sentences(Silent) == {"told": "What the first field is."}


def test_a_part_of_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    lines = said(capsys, "training.optimizer").splitlines()
    assert lines[:2] == ["training (Training)", "  training.optimizer  Optimizer  AdamW  What updates the weights."]
    rows = [line.split() for line in lines if line.startswith("  training.optimizer.lr ")]
    assert [(row[1], row[2]) for row in rows] == [("float", "0.001"), ("float", "0.02")]  # of AdamW, of Muon
    assert "training.optimizer (Muon)" in lines and not any("schedule" in line for line in lines)


def test_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    found: list[dict[str, Any]] = json.loads(said(capsys, "--json"))
    assert {one["path"].partition(".")[0] for one in found} == {"data", "model", "objective", "training"}
    by_name = {(one["part"], one["path"].rpartition(".")[2]): one for one in found}
    assert by_name["Attention", "heads"]["required"] and by_name["Attention", "heads"]["default"] is None
    assert by_name["TokenizerSettings", "max_length"]["type"] == "int or null"
    assert by_name["Training", "optimizer"]["default"]["type"] == "AdamW"


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("training.optimzer", "training.optimizer"),
        ("data.words", "data.tokenizer"),
        ("training.optimizer.rate", "training.optimizer.lr"),
        ("model.stack.detph", "model.stack.depth"),
    ],
)
def test_a_path_that_is_none(path: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["settings", path]) == 2
    assert capsys.readouterr().err == f"error: {path}: no such setting; did you mean '{meant}'?\n"

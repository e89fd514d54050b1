"""Settings: every part goes to JSON and YAML and back, and what does not fit is refused by name."""

from __future__ import annotations

import contextlib
import dataclasses
import json

import pytest
import torch

import anyformer
from anyformer import (
    Attention,
    Model,
    NoNorm,
    Norm,
    Relative,
    RMSNorm,
    Rope,
    Spec,
    UserError,
    preset,
    preset_names,
    replace_in,
)
from anyformer.spec import FORMAT, default_of, fields_of
from tests.laws.nets import language
from tests.laws.parts import SLOTS, every, examples, named, ours

pytestmark = pytest.mark.quick
PRESETS = preset_names()


class Undescribed(Norm):
    """A part of the tests' own that needs a setting and has no example: the control of the law below."""

    secret: int


def lacking(parts: list[type[Spec]]) -> list[str]:
    return [part.__name__ for part in parts if not examples(part)]


@pytest.mark.parametrize("slot", SLOTS, ids=lambda slot: slot.__name__)
def test_every_part_has_an_example(slot: type[Spec]) -> None:
    found = lacking(ours(slot))
    assert ours(slot), f"no part of the slot {slot.__name__} was found"
    assert not found, f"{found} cannot be made without settings: add a small example to EXAMPLES in tests/laws/parts.py"
    assert lacking([Undescribed]) == ["Undescribed"]  # control: such a part is noticed
    assert Undescribed not in ours(Norm)  # and parts of the tests do not count as ours


class Public(dict[str, object]):
    """The package's public names, for reading what a spec prints."""

    def __missing__(self, name: str) -> object:
        return getattr(anyformer, name)


@pytest.mark.parametrize("spec", every(*SLOTS))
def test_every_part_goes_to_json_and_back(spec: Spec) -> None:
    slot = next(slot for slot in SLOTS if isinstance(spec, slot))
    saved = spec.to_json()
    assert json.loads(saved)["anyformer"] == FORMAT
    assert slot.from_json(saved) == spec and type(slot.from_json(saved)) is type(spec)
    assert eval(repr(spec), {}, Public()) == spec  # prints as the call that makes it
    # Control: a value that changed on the way would show.
    for name, value in spec.settings().items():
        if isinstance(value, int) and not isinstance(value, bool) and value > 1:
            changed = json.loads(saved) | {name: value + 1}
            with contextlib.suppress(UserError):  # the other value does not fit the rest: noticed as well
                assert slot.from_json(json.dumps(changed)) != spec


@pytest.mark.parametrize("spec", every(*SLOTS))
def test_every_part_goes_to_yaml_and_back(spec: Spec) -> None:
    slot = next(slot for slot in SLOTS if isinstance(spec, slot))
    assert slot.from_yaml(spec.to_yaml()) == spec
    # Written by hand, a field that has its default may be left out.
    kept = {name for name, value in spec.settings().items() if value != default_of(spec, name)}
    short = {key: value for key, value in spec.to_dict().items() if key == "type" or key in kept}
    assert slot.from_dict(short) == spec
    with pytest.raises(UserError):  # control: a setting without a default may not
        Attention.from_yaml("type: Attention")


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_goes_to_json_and_yaml_and_back(name: str) -> None:
    spec = preset(name)
    kind = type(spec)
    assert kind.from_json(spec.to_json()) == spec
    assert kind.from_yaml(spec.to_yaml()) == spec
    assert hash(kind.from_json(spec.to_json())) == hash(spec)


@pytest.mark.parametrize("spec", every(*SLOTS))
def test_a_saved_file_with_a_missing_field_is_refused(spec: Spec) -> None:
    """Today's default must not change yesterday's model; what is nothing unless given is the same on both days."""
    slot = next(slot for slot in SLOTS if isinstance(spec, slot))
    defaults = {f.name: f.default for f in dataclasses.fields(spec)}  # type: ignore[arg-type]
    for name in fields_of(type(spec)):
        data = json.loads(spec.to_json())
        del data[name]
        if defaults[name] is None:
            with contextlib.suppress(UserError):  # a part may need one of several fields
                assert slot.from_json(json.dumps(data)) == spec.replace(**{name: None}), name
            continue
        with pytest.raises(UserError, match=f"misses {name}"):
            slot.from_json(json.dumps(data))


@pytest.mark.parametrize("spec", every(*SLOTS))
def test_an_unknown_name_is_refused_with_the_nearest(spec: Spec) -> None:
    slot = next(slot for slot in SLOTS if isinstance(spec, slot))
    kind = type(spec).__name__
    misspelt = kind + "s"
    with pytest.raises(UserError, match=f"'{misspelt}' is not a known {slot.__name__}; did you mean '{kind}'"):
        slot.from_dict(spec.to_dict() | {"type": misspelt})
    for name in fields_of(type(spec)):
        with pytest.raises(UserError, match=f"has no setting '{name}x'; did you mean '{name}'"):
            slot.from_dict({"type": kind, f"{name}x": 1})
        with pytest.raises(UserError, match=f"has no setting '{name}x'; did you mean '{name}'"):
            spec.replace(**{f"{name}x": 1})


def test_other_versions_of_the_format_are_refused() -> None:
    saved = json.loads(language().to_json())
    for version in (FORMAT + 1, 0, None, "1"):
        with pytest.raises(UserError, match="format"):
            Model.from_json(json.dumps(saved | {"anyformer": version}))
    del saved["anyformer"]
    with pytest.raises(UserError, match="no format version"):
        Model.from_json(json.dumps(saved))
    for text in ("{", "[" * 100_000, "3"):
        with pytest.raises(UserError):
            Model.from_json(text)


def test_an_error_names_the_whole_path() -> None:
    data = language().to_dict()
    data["stack"]["block"]["mixer"]["haeds"] = 3
    with pytest.raises(UserError, match=r"stack\.block\.mixer: Attention has no setting 'haeds'; did you mean 'heads'"):
        Model.from_dict(data)
    data = language().to_dict()
    data["stack"]["block"] = [data["stack"]["block"], data["stack"]["block"] | {"norm": {"type": "RMSnorm"}}]
    with pytest.raises(UserError, match=r"stack\.block\[1\]\.norm\.type.*RMSNorm"):
        Model.from_dict(data)


def test_specs_are_frozen_and_equal_by_value() -> None:
    spec = language()
    with pytest.raises(AttributeError):
        spec.stack.width = 3  # type: ignore[misc]
    assert spec == language() and hash(spec) == hash(language())
    assert spec != language(norm=NoNorm())


def test_a_tree_is_changed_by_path() -> None:
    spec = language(norm=RMSNorm())
    changed = replace_in(spec, {"stack.block.relative": Rope(), "stack.depth": 3, "stack.block.norm": "NoNorm"})
    assert changed.stack.depth == 3 and changed.stack.block.relative == Rope() and changed.stack.block.norm == NoNorm()
    assert spec.stack.depth == 2  # the original stays
    # Width and heads fit only together: the tree is checked once, as a whole.
    both = replace_in(spec, {"stack.width": 18, "stack.block.mixer.heads": 6})
    assert both.stack.block.mixer == Attention(heads=6)
    with pytest.raises(UserError, match=r"stack\.widht.*did you mean 'width'"):
        replace_in(spec, {"stack.widht": 3})


def test_making_specs_draws_no_random_numbers() -> None:
    """A seed set by a user must give the same run however many specs are made after it."""
    torch.manual_seed(3)
    before = torch.get_rng_state()
    for relative in named(Relative).values():
        language(relative=relative)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(1)
    assert not torch.equal(torch.get_rng_state(), before)  # control: a draw would be seen

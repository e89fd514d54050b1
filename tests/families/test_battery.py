"""The battery that every family passes: tests/families/cases declares what is compared, here it is compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from anyformer import preset
from anyformer.checkpoints.folder import as_family
from anyformer.families import FAMILIES
from tests.families.family import Check, families
from tests.families.parity import Case, check_config, check_logits, check_round_trip
from tests.families.passes import count

DECLARED = dict(families())


def comparisons() -> Iterator[Any]:
    """Every check of every family on every case it is declared for."""
    for name, family in DECLARED.items():
        round_trips = family.cases if family.round_trips is None else family.round_trips
        checks = {check_logits: family.cases, check_round_trip: round_trips, **family.checks}
        for check, chosen in checks.items():
            what = check.__name__.removeprefix("check_").replace("_", " ")
            for case in chosen:
                yield pytest.param(check, case, id=f"{name}: {what}: {case}")


@pytest.mark.parametrize(("check", "case"), list(comparisons()))
def test_a_case_equals_transformers(check: Check, case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


CONFIGS = [config for family in DECLARED.values() for config in family.configs]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.__name__)
def test_every_option_of_the_config_is_read(config: Any) -> None:
    check_config(config.model_type, config)


PRESETS = [
    pytest.param(name, preset_name, theirs, id=preset_name)
    for name, family in DECLARED.items()
    for preset_name, theirs in family.presets.items()
]


@pytest.mark.parametrize(("family", "name", "theirs"), PRESETS)
def test_a_preset_has_the_published_size_and_family(family: str, name: str, theirs: Callable[[], nn.Module]) -> None:
    with torch.device("meta"):
        published = theirs()
    assert count(preset(name).build(device="meta")) == count(published)
    assert as_family(preset(name), {})[0].model_type == family


@pytest.mark.quick
def test_every_family_has_cases() -> None:
    apart = {"clip", "timm_wrapper"}  # two towers and a scale; not a model of transformers: in tests of their own
    assert {config.model_type for config in CONFIGS} == set(FAMILIES) - apart

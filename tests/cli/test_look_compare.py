"""`anyformer look` with a second input, a second model, and a run: what the page then holds, and what is refused."""

from __future__ import annotations

import json

import pytest

from tests.cli.trying import done, run
from tests.inspection.models import TEXT, gpt


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    place = tmp_path_factory.mktemp("models")
    return [gpt(depth=depth).save(place / f"depth-{depth}") for depth in (2, 3)]


def views(said):
    return {view["name"]: view["applies"] for view in json.loads(said.out)["views"]}


def test_a_second_input_or_model_opens_the_view(folders):
    assert not views(done("look", folders[0], TEXT, "--json"))["compare"]
    assert views(done("look", folders[0], TEXT, "--with", "An old cat", "--json"))["compare"]
    assert views(done("look", folders[0], TEXT, "--with-model", folders[0], "--json"))["compare"]


def test_models_of_another_layout_are_refused(folders):
    said = run("look", folders[0], TEXT, "--with-model", folders[1], "--json")
    assert said.code == 2 and "2 attention layers, the other 3" in said.errors[0]

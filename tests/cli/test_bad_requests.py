"""Every slip on the command line or in a settings file: one line, the right suggestion, nothing written."""

from __future__ import annotations

import random
import string
from pathlib import Path

import pytest

from anyformer.errors import UserError
from anyformer.training.setup.request import Request
from anyformer.training.setup.setting_paths import is_setting, setting_paths
from tests.cli.bad_requests import BAD, GOOD, Bad
from tests.cli.trying import refused, run, standing_in, tree


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with good data in it."""
    (tmp_path / "data.csv").write_text(GOOD)
    (tmp_path / "taken").write_text("a file\n")
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("not to be lost\n")
    return tmp_path


@pytest.mark.quick
@pytest.mark.parametrize("case", BAD, ids=lambda case: case.name)
def test_a_slip_is_told_and_nothing_is_written(case: Bad, place: Path) -> None:
    if case.yaml is not None:
        content = case.yaml.encode() if isinstance(case.yaml, str) else case.yaml
        (place / "run.yaml").write_bytes(content)
    before = tree(place)
    with standing_in(place):
        said = run(*case.line)
    line = refused(said, before, place)
    for words in case.said:
        assert words in line, line


def test_control_the_good_line_is_taken(place: Path) -> None:
    (place / "run.yaml").write_text("task: classify\ntraining:\n  batch_size: 4\n  optimizer: {lr: 1e-3}\n")
    with standing_in(place):
        assert run("check", "run.yaml").code == 0
        assert run("check", "data.csv", "--config", "run.yaml", "--set", "training.save_every=10").code == 0


def one_slip(word: str, rng: random.Random) -> str:
    """A word with one letter lost, doubled, exchanged with its neighbour, or another one."""
    at = rng.randrange(len(word))
    kind = rng.choice(["lose", "add", "swap", "other"])
    if kind == "lose" and len(word) > 2:
        return word[:at] + word[at + 1 :]
    if kind == "add":
        return word[:at] + rng.choice(string.ascii_lowercase) + word[at:]
    if kind == "swap" and at + 1 < len(word) and word[at] != word[at + 1]:
        return word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    return word[:at] + rng.choice(string.ascii_lowercase.replace(word[at], "")) + word[at + 1 :]


def slips(count: int) -> list[tuple[str, str]]:
    """Settings and the same with one slip in one of their names, over all of them in turn."""
    rng = random.Random(0)
    found: list[tuple[str, str]] = []
    paths = setting_paths()
    while len(found) < count:
        path = paths[len(found) % len(paths)]
        names = path.split(".")
        at = rng.randrange(len(names))
        names[at] = one_slip(names[at], rng)
        if not is_setting(wrong := ".".join(names)):
            found.append((path, wrong))
    return found


def suggested(wrong: str) -> str:
    try:
        Request([], settings={wrong: 1})
    except UserError as error:
        assert len(f"error: {error}") <= 300
        return str(error)
    raise AssertionError(f"{wrong} was taken")


def test_one_slip_in_a_setting_is_answered_with_the_right_name() -> None:
    tried = slips(3 * len(setting_paths()))
    right = sum(f"did you mean {path!r}?" in suggested(wrong) for path, wrong in tried)
    print(f"{right} of {len(tried)} suggestions are right")
    assert len(tried) > 1000
    assert right / len(tried) >= 0.95, (right, len(tried))


def test_control_a_name_far_from_all_is_not_guessed_at() -> None:
    assert "did you mean" not in suggested("zzzzqqqq.wwww")

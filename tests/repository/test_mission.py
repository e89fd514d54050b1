"""Every promise of the feature table, every worked example and erratum is in the table, and what it names is there."""

from __future__ import annotations

import importlib
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from anyformer.lab.catalogue import all_claims
from tests.mission import __main__ as command
from tests.mission.references import anchors, broken_references, unknown_marks
from tests.mission.table import FILES, HERE, IDS, ROOT, MissionRow, page_marks, read_rows, slug

ROWS = read_rows()
GOOD = MissionRow(
    "R01", "a stack", tests=("tests/repository/test_mission.py::test_a_row_is_whole_where_nothing_is_missing",),
    claims=("permutation",), recipes=("recipes/common.py",), pages=("docs/how-to/plan.md#devices",),
)  # fmt: skip


def test_every_promise_is_there_once() -> None:
    assert [row.name for row in ROWS] == list(IDS) and len(set(IDS)) == 115 + 31 + 28
    assert all(row.title for row in ROWS)


def test_every_reference_is_there() -> None:
    assert broken_references(ROWS, all_claims()) == []
    assert unknown_marks() == []


@pytest.mark.parametrize(
    "change",
    [
        {"tests": ("tests/repository/test_mission.py::test_that_nobody_wrote",)},
        {"tests": ("tests/repository/test_nothing.py::test_every_reference_is_there",)},
        {"tests": ("tests/repository/test_mission.py",)},
        {"tests": ("tests/mission/references.py::has_test",)},
        {"claims": ("permutations",)},
        {"recipes": ("recipes/nothing.py",)},
        {"pages": ("docs/how-to/nothing.md",)},
        {"pages": ("docs/how-to/plan.md#no-such-heading",)},
        {"pages": ("docs/parts.md#NoSuchPart",)},
    ],
    ids=str,
)
def test_control_a_broken_reference_is_named(change: dict[str, tuple[str, ...]]) -> None:
    assert broken_references([GOOD], {"permutation"}) == []
    (line,) = broken_references([replace(GOOD, **change)], {"permutation"})  # type: ignore[arg-type]
    assert line.startswith("R01: ") and next(iter(change.values()))[0] in line


def test_a_row_is_whole_where_nothing_is_missing() -> None:
    assert GOOD.state == "whole" and not GOOD.missing
    assert replace(GOOD, gap="the rest").state == "in part"
    assert replace(GOOD, pages=()).missing == "no page" and replace(GOOD, pages=()).state == "in part"
    assert replace(GOOD, tests=(), gap="the rest").missing == "no test; the rest"
    assert MissionRow("R01", "a stack").state == "nothing"
    assert replace(GOOD, name="W01", pages=()).state == "whole"
    assert replace(GOOD, name="E01", claims=()).missing == "no claim"


def test_a_worked_example_has_its_number_in_the_name_of_a_test() -> None:
    for row in ROWS:
        if row.name.startswith("W"):
            names = [test.partition("::")[2].split("_") for test in row.tests]
            assert any(row.name.lower() in name for name in names), row


def test_an_erratum_is_in_the_claim_that_measures_it() -> None:
    files = [path.stem for path in (ROOT / "src/anyformer/lab/claims").glob("*_errata.py")]
    modules = [importlib.import_module(f"anyformer.lab.claims.{name}") for name in files]
    measured = {f"E{erratum.number:02}": module.CLAIM.name for module in modules for erratum in module.ERRATA}
    assert {row.name: row.claims[0] for row in ROWS if row.name.startswith("E")} == measured


def changed(folder: Path, old: str, new: str) -> Path:
    """The files of the table with one change."""
    for name in FILES:
        shutil.copy(HERE / name, folder)
    text = (folder / FILES[0]).read_text(encoding="utf-8")
    assert old in text
    (folder / FILES[0]).write_text(text.replace(old, new, 1), encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("[R02]", "[W02]", "W02 is there twice"),
        ("[R02]", "[R200]", "R200 is no row"),
        ("title =", "lecture = 3\ntitle =", "R01 has lecture; use title, tests"),
    ],
)
def test_a_wrong_table_is_refused(old: str, new: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=said):
        read_rows({}, changed(tmp_path, old, new))


def test_an_absent_row_is_named(tmp_path: Path) -> None:
    folder = changed(tmp_path, "[R01]", "[R01]")
    text = (folder / FILES[0]).read_text(encoding="utf-8")
    start = text.index("[R02]")
    (folder / FILES[0]).write_text(text[:start] + text[text.index("[R03]") :], encoding="utf-8")
    with pytest.raises(ValueError, match="no row for R02"):
        read_rows({}, folder)


def test_pages_that_say_what_they_show_are_found(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    page = "# A\n\n## 1. Heads, and `more`\n\n<!-- shows: R05 erratum-5 -->\n\n```sh\n# no heading\n```\n"
    (tmp_path / "docs/a.md").write_text(page + "<!-- shows: R500 -->\n", encoding="utf-8")
    marks = page_marks(tmp_path)
    assert marks["R05"] == marks["E05"] == ["docs/a.md#1-heads-and-more"]
    assert unknown_marks(tmp_path) == [f"{marks['R500'][0]} shows R500, which is no row"]
    assert anchors(tmp_path / "docs/a.md") == {"a", slug("1. Heads, and `more`")}


def test_the_command_prints_and_answers(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert command.main(["R01", "W25"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("R01  ") and "\nW25  " in said and "\nR02  " not in said
    assert "test    tests/inspection/test_rollout.py::test_w25_" in said and "\n115 rows: " in said
    assert command.main(["--markdown", "--gaps"]) == 0
    table = capsys.readouterr().out.splitlines()
    assert len(table) == 2 + sum(row.state != "whole" for row in ROWS)
    nothing = MissionRow("R01", "a stack")
    monkeypatch.setattr(command, "read_rows", lambda: [nothing, replace(GOOD, claims=("gone",), name="R02")])
    assert command.main(["--missing"]) == 1
    said, errors = capsys.readouterr()
    assert said.startswith("R01  nothing  a stack\n") and "R02  " not in said
    assert errors == "R02: no claim is called gone\n"

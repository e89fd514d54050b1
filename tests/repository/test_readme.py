"""The README's map of the source is complete: every package and top-level module is on it, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.repository.source import ROOT

SOURCE = ROOT / "src" / "anyformer"
NAME = re.compile(r"(?<![\w./])(\w+(?:/|\.py))(?![\w./])")
pytestmark = pytest.mark.quick


def what_is_where(readme: str) -> str:
    """The lines about the source."""
    tree = readme.partition("## What is where")[2].partition("```\n")[2].partition("```")[0]
    return tree.partition("src/anyformer/\n")[2].partition("\ntests/")[0]


def named(tree: str) -> set[str]:
    """The paths that the map names; a line that is indented further is below the last package that is not."""
    found: set[str] = set()
    above = ""
    for line in tree.splitlines():
        names = NAME.findall(line)
        if line.startswith("    "):
            found |= {above + name for name in names}
        else:
            found |= set(names)
            above = names[0] if names else ""
    return found


def there(source: Path) -> set[str]:
    """Packages, those inside others too, and top-level modules."""
    packages = {f"{path.parent.relative_to(source)}/" for path in source.rglob("*/__init__.py")}
    return packages | {path.name for path in source.glob("*.py") if path.name != "__init__.py"}


def test_every_package_and_top_level_module_is_on_the_map() -> None:
    tree = what_is_where((ROOT / "README.md").read_text(encoding="utf-8"))
    missing = there(SOURCE) - named(tree)
    assert not missing, f"README.md, 'What is where', does not name {sorted(missing)}"


def test_the_map_names_nothing_that_is_gone() -> None:
    tree = what_is_where((ROOT / "README.md").read_text(encoding="utf-8"))
    files = {path.name for path in SOURCE.rglob("*.py")}
    gone = {name for name in named(tree) - there(SOURCE) if name.rpartition("/")[2] not in files}
    assert not gone, f"README.md, 'What is where', names {sorted(gone)}"


def test_control_a_package_that_is_not_named_is_noticed(tmp_path: Path) -> None:
    for name in ("core", "data", "data/files"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    (tmp_path / "spec.py").touch()
    assert there(tmp_path) == {"core/", "data/", "data/files/", "spec.py"}
    whole = "  spec.py  settings\n  core/ the core, see docs/core.md\n  data/ batches\n    files/  reading\n"
    assert named(whole) == there(tmp_path)
    assert there(tmp_path) - named(whole.replace("    files/", "  files/")) == {"data/files/"}
    assert there(tmp_path) - named(whole.replace("spec.py", "settings")) == {"spec.py"}

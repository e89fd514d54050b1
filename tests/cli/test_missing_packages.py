"""A package that is not installed is one line that names the extra; the command line needs nothing to say so."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from anyformer.extras import OPTIONAL_PACKAGES
from tests.cli.without_packages import CASES

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = {
    name: {re.split(r"[<>=\[]", package)[0] for package in packages}
    for name, packages in PROJECT["optional-dependencies"].items()
}


def said(folder: Path, *words: str) -> dict[str, str]:
    (folder / "book.txt").write_text("a few words of text\n" * 50)
    (folder / "run.yaml").write_text("training: {bach: 16}\n")
    (folder / "rows.csv").write_text("text,label\n" + "a,b\nc,d\n" * 20)
    for kind, name in (("pictures", "a.png"), ("recordings", "a.flac")):
        for label in ("cat", "dog"):
            (folder / kind / label).mkdir(parents=True)
            (folder / kind / label / name).write_bytes(b"not one")
    done = subprocess.run(
        [sys.executable, "-m", "tests.cli.without_packages", str(folder), *words], cwd=ROOT, capture_output=True,
        text=True, check=True, timeout=300,
    )  # fmt: skip
    return dict(json.loads(done.stdout))


def test_every_call_that_needs_a_package_names_its_extra(tmp_path: Path) -> None:
    found = said(tmp_path)
    for name, (module, _) in CASES.items():
        package, extra = OPTIONAL_PACKAGES[module]
        line = found[name]
        assert re.match(r"(error|UserError): ", line) and "\n" not in line, (name, line)
        assert package in line and f"pip install 'anyformer[{extra}]'" in line, (name, line)


def test_control_nothing_is_missing_where_all_is_installed(tmp_path: Path) -> None:
    for name, line in said(tmp_path, "--installed").items():
        assert "pip install" not in line, (name, line)


def test_the_table_of_packages_is_that_of_pyproject() -> None:
    for module, (package, extra) in OPTIONAL_PACKAGES.items():
        assert package in EXTRAS[extra], (module, package, extra)
    listed = {package for package, _ in OPTIONAL_PACKAGES.values()}
    for extra in set(EXTRAS) - {"all", "dev"}:
        assert EXTRAS[extra] <= listed, (extra, EXTRAS[extra] - listed)


def imported(path: Path) -> set[str]:
    """The packages that a file imports, anywhere in it."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    some = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    return {name.partition(".")[0] for name in plain | some}


def test_every_package_that_is_imported_is_a_dependency_or_in_the_table() -> None:
    """One that the table does not know would end in a traceback."""
    needed = {re.split(r"[<>=]", package)[0] for package in PROJECT["dependencies"]}
    brought = {"threadpoolctl", "typing_extensions"}  # by scikit-learn and by torch
    known = {"anyformer"} | brought | needed | set(OPTIONAL_PACKAGES)
    for path in sorted((ROOT / "src").rglob("*.py")):
        assert imported(path) - set(sys.stdlib_module_names) <= known, (path, imported(path))


@pytest.mark.quick
@pytest.mark.parametrize("words", [[], ["--help"], ["train", "book.txt"]])
def test_without_typer_one_line_says_what_to_install(words: list[str]) -> None:
    code = (f"import sys; sys.modules['typer'] = None; sys.argv = ['anyformer', *{words!r}]; "
            "import runpy; runpy.run_module('anyformer', run_name='__main__')")  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and not done.stdout
    assert done.stderr == "error: the command line needs typer; run: pip install 'anyformer[cli]'\n"

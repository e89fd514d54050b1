"""No file of the repository names a folder of somebody's machine: such a path is wrong everywhere else."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.repository.source import ROOT

# An absolute path into a personal or system folder; a relative path or a web address with the same word is fine.
FOLDERS = "work|root|opt|home|Users|mnt|media|private"
MACHINE = re.compile(rf"(?:(?<=file://)|(?<![\w.~/$}})\]-]))/(?:{FOLDERS})(?=/|[\s\"'`;:,)]|$)", re.MULTILINE)


def files() -> list[str]:
    """Tracked files, and those that would be with the next `git add`."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def machine_paths(text: str) -> list[str]:
    return [text[match.start() :].split()[0][:60] for match in MACHINE.finditer(text)]


def test_no_machine_paths():
    found = []
    for name in files():
        try:
            text = (ROOT / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a picture or a font
        found += [f"{name}: {path}" for path in machine_paths(text)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("folder", ["work", "root", "opt", "home", "Users"])
@pytest.mark.parametrize("form", ["see /{}/x/y", "'/{}'", "path=/{}/a", "file:///{}/a", "(/{}/a)", "x:/{}/a"])
def test_control_a_machine_path_is_seen(folder, form):
    assert machine_paths(form.format(folder))


@pytest.mark.parametrize(
    "text", ["https://example.org/work/x", "docs/root/x", "./opt/x", "/v1/models", "/usr/bin/env", "$HOME/work"]
)
def test_control_other_paths_are_not(text):
    assert not machine_paths(text)

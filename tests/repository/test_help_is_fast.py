"""Help answers at once, and the library adds little to what torch costs."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

HEAVY = ("torch", "numpy", "safetensors", "tokenizers", "rich", "yaml", "pyarrow", "sklearn", "transformers")
HELP = "import sys; from anyformer.cli import main; code = main(['--help'])"


def python(code: str) -> str:
    # With byte code on disk, as on a user's machine: a variable that forbids it would time the compiler instead.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


def loaded(code: str) -> set[str]:
    """Which of the heavy libraries a fresh Python has imported after `code`."""
    last = python(f"{code}\nimport sys\nprint('\\nloaded:', *(m for m in {HEAVY} if m in sys.modules))").splitlines()[
        -1
    ]
    return set(last.split()[1:])


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["demo", "--help"], ["presets", "--help"], ["demmo"]])
def test_help_imports_nothing_heavy(words):
    assert not loaded(f"from anyformer.cli import main; main({words})")


def test_control_a_heavy_import_is_seen():
    assert loaded("import numpy") == {"numpy"}


@pytest.mark.alone
def test_help_answers_within_300_ms():
    taken = []
    for _ in range(5):
        start = time.perf_counter()
        assert "Usage: anyformer" in python(HELP)
        taken.append(time.perf_counter() - start)
    assert min(taken) < 0.3, [f"{t:.3f}" for t in taken]


@pytest.mark.alone
def test_import_adds_at_most_300_ms_to_torch():
    """Every public name is touched, so that a name imported on first use is paid for here.

    Only those that train are left out: they bring in scikit-learn and all there is about data when first used.
    """
    code = """
import time, torch
start = time.perf_counter()
import anyformer
train = ("anyformer.estimators", "anyformer.tasks", "anyformer.training")
for name in anyformer.__all__:
    if not anyformer.HOME.get(name, "").startswith(train):
        getattr(anyformer, name)
print(time.perf_counter() - start)
"""
    taken = [float(python(code)) for _ in range(3)]
    assert min(taken) <= 0.3, [f"{t:.3f}" for t in taken]

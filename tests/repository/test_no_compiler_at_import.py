"""Torch's compiler costs seconds to import; nothing may pull it in before it is asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

ASK = "import sys, torch; before = set(sys.modules); import {name}; print('torch._dynamo' in set(sys.modules) - before)"


def pulls_in_the_compiler(name: str) -> str:
    done = subprocess.run([sys.executable, "-c", ASK.format(name=name)], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize("name", ["anyformer.objectives", "anyformer.serving.server", "anyformer.inference.predictor"])
def test_importing_does_not_import_the_compiler(name: str) -> None:
    assert pulls_in_the_compiler(name) == "False"


def test_the_question_can_be_answered_with_yes() -> None:
    assert pulls_in_the_compiler("torch._dynamo") == "True"

"""The examples of the page about estimators run as they stand, one after the other."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "estimators.md"


def test_the_examples_run(tmp_path: Path) -> None:
    blocks = re.findall(r"```(\w*)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 4 and {kind for kind, _ in blocks} == {"python"}
    code = "import torch\ntorch.set_num_threads(1)\n" + "\n".join(code for _, code in blocks)
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "prices" / "estimator.json").is_file() and "without size" in done.stdout
    assert len(list((tmp_path / "runs").glob("*/report.html"))) == 1

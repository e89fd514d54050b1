"""Loss curves that must not change: bit for bit on the kind of machine they were recorded on, to 1e-3 elsewhere.

python tests/training/test_golden.py        records them anew, after a change that was meant
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from pathlib import Path

import pytest
import torch

from anyformer.training.run.folder import environment
from anyformer.training.train import train

RECORDED = Path(__file__).parent / "golden.json"
SAME = ("processor", "capability", "torch", "machine", "details")  # what the bits depend on
COMMON = {"training.steps": 30, "training.threads": 1, "training.eval_every": 15, "training.batch_size": 8}


def text(folder: Path) -> Path:
    """Sentences of a small grammar."""
    draw = random.Random(0)
    words = "the a small old red cat dog bird sees likes follows and but".split()
    path = folder / "book.txt"
    path.write_text("\n".join(" ".join(draw.choices(words, k=12)) + "." for _ in range(400)), encoding="utf-8")
    return path


def table(folder: Path) -> dict[str, list[object]]:
    """Two numbers, a category and a number that follows from them."""
    draw = random.Random(1)
    rows = [(draw.random(), draw.gauss(0, 1), draw.choice("abc")) for _ in range(120)]
    value = [3 * x - y + {"a": 0, "b": 1, "c": 2}[z] for x, y, z in rows]
    x, y, z = zip(*rows, strict=True)
    return {"x": list(x), "y": list(y), "z": list(z), "value": value}


def machine() -> dict[str, object]:
    """The kind of machine: the same name may hide other caches and instructions."""
    here = environment(torch.device("cpu"), 1)
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].split("\n")
    except OSError:
        lines = []
    kept = [line for line in lines if line.startswith(("model", "stepping", "cache size", "flags"))]
    here["details"] = hashlib.sha256("\n".join(kept).encode()).hexdigest()[:16]
    return {name: here[name] for name in SAME}


def curve(kind: str, folder: Path) -> list[float]:
    """The losses of a short training on a corpus made here."""
    if kind == "text":
        run = train(text(folder), "lm", "gpt2-tiny", device="cpu", out=folder / "run", progress="none", quiet=True,
                    settings=COMMON | {"data.tokenizer.kind": "char", "data.tokenizer.max_length": 32,
                                       "model.stack.block.dropout": 0.1})  # fmt: skip
    else:
        run = train(table(folder), "regress", "ft-transformer-tiny", "value", device="cpu", out=folder / "run",
                    progress="none", quiet=True, settings=COMMON)  # fmt: skip
    return [row["loss"] for row in run.history if "loss" in row]


@pytest.mark.parametrize("kind", ["text", "table"])
def test_the_loss_curve_is_the_recorded_one(kind, tmp_path):
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    found, wanted = curve(kind, tmp_path), recorded["curves"][kind]
    assert len(found) == len(wanted) == COMMON["training.steps"]
    if recorded["machine"] == machine():
        assert found == wanted
    else:
        assert found == pytest.approx(wanted, rel=1e-3)


def test_control_another_seed_gives_another_curve(tmp_path):
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    run = train(table(tmp_path), "regress", "ft-transformer-tiny", "value", device="cpu", out=tmp_path / "run",
                progress="none", quiet=True, settings=COMMON | {"training.seed": 1})  # fmt: skip
    found = [row["loss"] for row in run.history if "loss" in row]
    assert found != pytest.approx(recorded["curves"]["table"], rel=1e-3)


def record() -> None:
    """Write the curves of this machine."""
    import tempfile

    curves = {}
    for kind in ("text", "table"):
        with tempfile.TemporaryDirectory() as folder:
            curves[kind] = curve(kind, Path(folder))
    RECORDED.write_text(json.dumps({"machine": machine(), "curves": curves}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(record())

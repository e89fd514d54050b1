"""The length of a run: steps, epochs and minutes, by name in Python, and what becomes of them together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer
from anyformer.errors import UserError

ROWS = {"size": [float(n % 7) for n in range(100)], "sold": ["yes" if n % 7 > 3 else "no" for n in range(100)]}
SMALL = {"model.stack.depth": 1, "training.threads": 1, "data.split.valid": 0.1, "data.split.test": 0.0}


def trained(out: Path, data: Any = ROWS, settings: dict[str, Any] | None = None, **named: Any) -> anyformer.Run:
    task, target, preset = ("classify", "sold", "ft-transformer-tiny") if data is ROWS else ("lm", None, "gpt2-tiny")
    return anyformer.train(data, task, preset, target, out=out, device="cpu", quiet=True,
                           settings=SMALL | (settings or {}), **named)  # fmt: skip


def test_epochs_are_passes_over_the_training_rows(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", epochs=3, batch_size=8, lr=0.02, seed=5)
    made = run.folder.config().training
    rows = run.folder.read_json("data.json")["split"]["train"]
    assert run.facts["step"] == made.steps == 3 * -(-rows // 8) and made.epochs is None
    assert (made.batch_size, made.optimizer.lr, made.seed) == (8, 0.02, 5)  # type: ignore[attr-defined]
    assert trained(tmp_path / "half", epochs=0.5, batch_size=8).facts["step"] == round(0.5 * -(-rows // 8))


def test_an_epoch_of_running_text_is_every_window_once(tmp_path: Path) -> None:
    book = tmp_path / "book.txt"
    book.write_text("the cat sat on the mat. " * 200)
    cut = {"data.tokenizer.kind": "char", "data.tokenizer.max_length": 16}
    run = trained(tmp_path / "run", book, cut, epochs=1, batch_size=7)
    windows = run.folder.read_json("data.json")["parts"]["train"]["tokens"] // 16
    assert run.facts["step"] == -(-windows // 7)
    predictor = run.predictor()
    ids = predictor.encode("the cat")
    assert len(ids) == 7 and predictor.decode(ids) == predictor.decode(torch.tensor(ids)) == "the cat"
    written = predictor.run_generation("the cat", {"max_new_tokens": 5})
    assert predictor.decode(next(written.rows())) == predictor.generate("the cat", max_new_tokens=5)


@pytest.mark.parametrize("length", [{"steps": 6}, {"epochs": 0.5}])
def test_minutes_bound_steps_and_epochs(tmp_path: Path, length: dict[str, float]) -> None:
    wide = trained(tmp_path / "wide", batch_size=8, minutes=5.0, **length)
    assert wide.facts["step"] == 6  # time is left, and not used up
    long = {name: 10**5 * value for name, value in length.items()}
    narrow = trained(tmp_path / "narrow", batch_size=8, minutes=0.01, **long)
    assert 0 < narrow.facts["step"] < 10**4


def test_steps_and_epochs_at_once_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="both steps and epochs are given"):
        trained(tmp_path / "run", steps=3, epochs=1)
    with pytest.raises(UserError, match=r"training\.epochs: epochs 0\.0 is outside \(0, 1000000\)"):
        trained(tmp_path / "run", epochs=0)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("made", "meant"),
    [
        (lambda: anyformer.training.optim.AdamW(rate=1e-3), "did you mean 'lr'?"),
        (lambda: anyformer.training.optim.AdamW(decay=0.1), "did you mean 'weight_decay'?"),
        (lambda: anyformer.training.settings.Training(clip=1.0), "did you mean 'grad_clip'?"),
        (lambda: anyformer.training.settings.Training(num_train_epochs=3), "did you mean 'epochs'?"),
        (lambda: anyformer.data.settings.TokenizerSettings(length=64), "did you mean 'max_length'?"),
        (lambda: anyformer.data.settings.Data(pictures=None), "did you mean 'images'?"),
        (lambda: anyformer.data.settings.AudioSettings(rate=8000), "did you mean 'sample_rate'?"),
        (lambda: anyformer.objectives.Translate(beams=4), "did you mean 'num_beams'?"),
    ],
)
def test_another_name_of_a_setting_leads_to_ours(made: Any, meant: str) -> None:
    with pytest.raises(UserError) as error:
        made()
    assert meant in str(error.value)

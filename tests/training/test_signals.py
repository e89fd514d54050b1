"""Sound, time series and proteins: trained, judged, asked and resumed by the command line."""

from __future__ import annotations

import csv
import json
import math
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from anyformer import load
from anyformer.data.sizes import Sizes
from anyformer.objectives import Batch
from anyformer.objectives.forecast import Forecasting
from anyformer.presets import preset
from tests.cli.trying import done, run, standing_in
from tests.tasks_by_name import default_preset, network

SMALL = ["--steps", "12", "--set", "training.threads=1", "--progress", "none", "--device", "cpu"]


def save(path: Path, hertz: float, samples: int, rate: int = 1000) -> None:
    sound = (8000 * np.sin(2 * np.pi * hertz * np.arange(samples) / rate)).astype("<i2").tobytes()
    form = struct.pack("<HHIIHH", 1, 1, rate, 2 * rate, 2, 16)
    body = b"WAVEfmt " + struct.pack("<I", 16) + form + b"data" + struct.pack("<I", len(sound)) + sound
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"RIFF" + struct.pack("<I", len(body)) + body)


def clips(folder: Path) -> list[str]:
    for kind, hertz in (("high", 330), ("low", 60)):
        for number in range(30):
            save(folder / "clips" / kind / f"{number}.wav", hertz + number, 200 + 3 * number)
    return ["clips"]


def waves(folder: Path) -> list[str]:
    with (folder / "waves.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["hour", "a", "b"])
        writer.writerows([h, round(math.sin(h / 4), 4), round(5 + math.cos(h / 4), 4)] for h in range(400))
    return ["waves.csv", "--task", "forecast", "--set", "data.series.look_back=32", "--set", "data.series.horizon=8"]


def proteins(folder: Path, *, labels: bool) -> list[str]:
    draw = random.Random(0)
    records, rows = [], ["id,family"]
    for number in range(80):
        middle = "GKSTGKST" if number % 2 else "WWHHWWHH"
        sides = ["".join(draw.choices("ACDEFILMNPQRVY", k=6)) for _ in range(2)]
        records.append(f">p{number} of {number % 2}\n{sides[0]}{middle}\n{sides[1]}\n")
        rows.append(f"p{number},{'kinase' if number % 2 else 'other'}")
    (folder / "p.fasta").write_text("".join(records))
    (folder / "p.csv").write_text("\n".join(rows) + "\n")
    return ["p.fasta", "p.csv", "--target", "family"] if labels else ["p.fasta"]


def trained(words: list[str]) -> dict[str, Any]:
    done("train", *words, "--out", "run", *SMALL)
    return json.loads(Path("run/evaluation.json").read_text())


def test_recordings_train_evaluate_and_predict(tmp_path: Path) -> None:
    with standing_in(tmp_path):
        words = clips(tmp_path)
        found = trained(words)
        assert found["task"] == "classify" and found["metrics"]["test"]["accuracy"] > 0.9
        judged = done("evaluate", "run", "clips", "--device", "cpu", "--json").json
        assert judged["accuracy"] > 0.9
        save(tmp_path / "new.wav", 65, 250)
        said = done("predict", "run", "new.wav", "--device", "cpu").out.splitlines()
        assert said[0] == "audio,prediction,probability" and said[1].startswith("new.wav,low")
        (tmp_path / "bad.wav").write_bytes(b"junk")
        refused = run("predict", "run", "bad.wav", "--device", "cpu")
        assert refused.code == 2 and len(refused.errors) == 1 and "bad.wav" in refused.errors[0]
        assert load("run").predict([tmp_path / "new.wav"]) == ["low"]


def test_a_series_trains_evaluates_and_foresees(tmp_path: Path) -> None:
    with standing_in(tmp_path):
        found = trained(waves(tmp_path))
        test = found["metrics"]["test"]
        assert found["task"] == "forecast" and test["loss"] < 0.9  # an untrained one repeats the mean: above 1
        # Waves repeat themselves: the last period repeated is nearly right, and better than a few steps of training.
        assert all(found["baselines"][name]["metrics"]["rmse"] > 0 for name in ("trivial", "strong"))
        out = done("predict", "run", "waves.csv", "--device", "cpu").out.splitlines()
        assert out[0] == "hour,a,b" and [line.split(",")[0] for line in out[1:]] == [str(400 + h) for h in range(8)]
        assert all(3 < float(line.split(",")[2]) < 7 for line in out[1:])  # in the units of the file
        judged = done("evaluate", "run", "waves.csv", "--device", "cpu", "--json").json
        assert judged["rows"] == (400 - 32 - 8 + 1) * 8
        (tmp_path / "short.csv").write_text("hour,a,b\n" + "".join(f"{h},0.1,5\n" for h in range(5)))
        assert len(done("predict", "run", "short.csv", "--device", "cpu").out.splitlines()) == 9
        lost = run("predict", "run", "waves.csv", "--device", "cpu", "-o", "x.what")
        assert lost.code == 2
        bare = tmp_path / "bare.csv"
        bare.write_text("hour,a\n1,2\n")
        refused = run("predict", "run", "bare.csv", "--device", "cpu")
        assert refused.code == 2 and "'b'" in refused.errors[0]


def echoes(folder: Path) -> str:
    """A series that a linear map knows best by construction: two lags and noise."""
    draw, values = np.random.default_rng(0), np.zeros(900)
    for at in range(2, len(values)):
        values[at] = 1.8 * values[at - 1] - 0.95 * values[at - 2] + draw.normal()
    (folder / "echoes.csv").write_text("t,x\n" + "".join(f"{at},{value:.5f}\n" for at, value in enumerate(values)))
    return "echoes.csv"


def test_a_forecast_begins_at_the_linear_map_and_keeps_it_where_nothing_is_better(tmp_path: Path) -> None:
    with standing_in(tmp_path):
        found = trained([echoes(tmp_path), "--set", "data.series.horizon=12"])
        strong = found["baselines"]["strong"]
        assert strong["name"] == "a linear map of the window"
        assert found["metrics"]["test"]["rmse"] < 1.03 * strong["metrics"]["rmse"]
        judged = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
        assert next(line for line in judged if "eval" in line)["step"] == 0
        length = load("run").preprocess.length
        alone = ["--preset", "patchtst-small", "--set", f"data.series.look_back={length}", "--out", "alone", *SMALL]
        done("train", "echoes.csv", "--set", "data.series.horizon=12", *alone)  # control: the Transformer without it
        without = json.loads(Path("alone/evaluation.json").read_text())["metrics"]["test"]["rmse"]
        assert without > 1.1 * strong["metrics"]["rmse"]


@pytest.mark.parametrize("labels", [False, True], ids=["alone", "labelled"])
def test_proteins_train_evaluate_and_predict(tmp_path: Path, labels: bool) -> None:
    with standing_in(tmp_path):
        found = trained([*proteins(tmp_path, labels=labels), "--set", "data.tokenizer.max_length=32"])
        assert found["task"] == ("classify" if labels else "lm")
        if not labels:
            assert found["metrics"]["valid"]["perplexity"] < 22  # fewer than there are residues
            assert done("evaluate", "run", "p.fasta", "--device", "cpu", "--json").json["perplexity"] < 22
            text = done("generate", "run", "GKST", "--max-new-tokens", "8", "--device", "cpu").out
            assert set(text.strip()) <= set("ACDEFGHIKLMNPQRSTVWY")
            return
        assert found["metrics"]["test"]["accuracy"] > 0.7
        rows = list(csv.DictReader(done("predict", "run", "p.fasta", "--device", "cpu").out.splitlines()))
        right = [row["prediction"] == ("kinase" if "GKST" in row["sequence"] else "other") for row in rows]
        assert len(rows) == 80 and np.mean(right) > 0.7
        assert done("evaluate", "run", "p.fasta", "p.csv", "--device", "cpu", "--json").json["accuracy"] > 0.7


@pytest.mark.quick
def test_networks_fit_the_data() -> None:
    heard = Sizes(parts=["audio"], sample_rate=8000, samples=7999, loudness=[-3.0, 2.0], classes=4)
    assert default_preset("classify", heard, gpu=False) == "sound-mini"
    for name in ("sound-mini", "ast-tiny", "ast-small"):
        spec: Any = network(name, "classify", heard)
        assert spec.embed.samples >= 7999 and spec.embed.samples - 7999 < spec.embed.step
        assert (spec.embed.sample_rate, spec.embed.mels, spec.embed.mean, spec.head.classes) == (8000, 64, -3.0, 4)
        assert spec.build(seed=0)(torch.zeros(2, 7999), torch.tensor([7999, 5])).logits.shape == (2, 4)
    series = Sizes(parts=["series"], length=12, numbers=5, outputs=3)
    assert default_preset("forecast", series, gpu=True) == "forecaster-small"
    for name in ("forecaster-small", "patchtst-small"):
        spec = network(name, "forecast", series)
        assert spec.build(seed=0)(torch.zeros(2, 12, 5)).logits.shape == (2, 15)
        assert spec.head.window == (12 if name == "forecaster-small" else None)
    for name, task, sizes in (("vit-mini", "classify", heard), ("gpt2", "forecast", series)):
        with pytest.raises(Exception, match="does not read"):
            network(name, task, sizes)


@pytest.mark.quick
def test_the_loss_of_a_forecast_is_the_mean_over_what_is_known() -> None:
    net = preset("patchtst-tiny").build(seed=0).eval()
    window, after = torch.randn(3, 64, 2), torch.randn(3, 8, 2)
    after[1, 2, 0] = torch.nan
    batch = Batch((window,), after, torch.arange(3))
    objective = Forecasting()
    said = net(window).logits.unflatten(1, (8, 2))
    off = (said - after).square()
    assert objective.weight(batch) == 47
    assert objective.loss(net, batch).item() == pytest.approx(off[~after.isnan()].sum().item(), rel=1e-5)

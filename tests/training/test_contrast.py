"""Sentence embeddings by the ordinary command: from lines or pairs, resumed to the bit, as vectors in many files."""

from __future__ import annotations

import json
import math
import random
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

from anyformer import UserError, load
from anyformer.data.sizes import Sizes
from anyformer.inference.evaluate import evaluate_run
from anyformer.inference.prediction_files import predict_files
from anyformer.objectives import SentenceContrast
from anyformer.presets import preset
from anyformer.serving.predict_rows import embed_what, predict_what
from anyformer.tasks import find
from anyformer.training.train import Run, train
from tests.training.nursery import Nursery
from tests.training.test_resume import expect
from tests.training.test_resume import resume as resume_words
from tests.training.tiny import COMMON, WORDS, differing

SETTINGS = COMMON | {"training.batch_size": 16, "model.stack.width": 32, "training.compile": False}


def sentence(chance: random.Random) -> list[str]:
    return [chance.choice(WORDS) for _ in range(6)]


def write_texts(folder: Path) -> None:
    """Lines, pairs that are one sentence in two languages, and pairs with a score."""
    chance = random.Random(0)
    lines = [sentence(chance) for _ in range(80)]
    (folder / "lines.txt").write_text("\n".join(" ".join(words) for words in lines) + "\n\n")
    pairs = [(" ".join(words), " ".join(f"{word[::-1]}o" for word in words)) for words in
             (sentence(chance) for _ in range(300))]  # fmt: skip
    (folder / "pairs.csv").write_text("english,other\n" + "".join(f"{one},{two}\n" for one, two in pairs))
    scored = []
    for number in range(60):
        words, kept = sentence(chance), number % 7
        scored.append(f"{' '.join(words)},{' '.join(words[:kept] + sentence(chance)[kept:])},{kept}")
    (folder / "scored.csv").write_text("one,two,score\n" + "\n".join(scored) + "\n")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("contrast")
    write_texts(where)
    return where


@pytest.fixture(scope="module")
def lines(place: Path) -> Run:
    return train(place / "lines.txt", "contrast", out=place / "run", device="cpu", settings=SETTINGS, quiet=True)


def test_lines_become_vectors_that_every_way_of_asking_gives_alike(lines: Run, place: Path, tmp_path: Path) -> None:
    assert set(lines.metrics) == {"retrieval_accuracy", "loss"} and lines.evaluation["main"] == "retrieval_accuracy"
    assert lines.evaluation["baselines"]["strong"]["name"] == "TF-IDF cosine"
    assert lines.evaluation["baselines"]["trivial"]["metrics"]["retrieval_accuracy"] == 1 / 8  # eight rows are judged
    texts = (place / "lines.txt").read_text().split("\n")[:10]
    predictor = load(lines.path)
    vectors = torch.tensor(predictor.predict(texts))
    assert vectors.shape == (10, 32) and torch.allclose(vectors.norm(dim=-1), torch.ones(10), atol=1e-5)
    assert torch.allclose(vectors, predictor.embed(texts), atol=1e-5)
    (tmp_path / "some.txt").write_text("\n".join(texts) + "\n")

    def predicted(out: Path | None, as_json: bool = False) -> str | None:
        return predict_files(lines.path, [tmp_path / "some.txt"], out, device="cpu", batch_size=4, as_json=as_json,
                             log=lambda line: None)  # fmt: skip

    predicted(tmp_path / "vectors.npy")
    assert np.allclose(np.load(tmp_path / "vectors.npy"), vectors, atol=1e-5)
    rows = [json.loads(line) for line in (predicted(None, as_json=True) or "").splitlines()]
    assert [row["text"] for row in rows] == texts
    assert np.allclose([row["embedding"] for row in rows], vectors, atol=1e-5)
    predicted(tmp_path / "vectors.csv")
    assert "embedding" in (tmp_path / "vectors.csv").read_text().splitlines()[0]
    for served in (embed_what(predictor)(texts), predict_what(predictor)([{"text": text} for text in texts])):
        assert np.allclose([row["embedding"] for row in served], vectors, atol=1e-5)


def test_pairs_find_one_another_where_no_word_is_shared(place: Path) -> None:
    settings = SETTINGS | {"training.steps": 250, "training.eval_every": 50, "training.batch_size": 32,
                           "training.optimizer.lr": 3e-3, "data.tokenizer.kind": "word"}  # fmt: skip
    run = train(place / "pairs.csv", "contrast", out=place / "pairs", device="cpu", settings=settings, quiet=True)
    judged = run.evaluation
    assert run.metrics["retrieval_accuracy"] > 0.8
    assert judged["baselines"]["strong"]["metrics"]["retrieval_accuracy"] < 0.1  # control: words alone say nothing
    named = train(place / "pairs.csv", "contrast", target="other", out=place / "named", device="cpu", quiet=True,
                  settings=SETTINGS | {"training.steps": 1})  # fmt: skip
    assert named.folder.read_json("data.json")["target"] == ["other"]


def test_scored_pairs_are_ranked_by_their_cosines(lines: Run, place: Path) -> None:
    found = evaluate_run(lines.path, [place / "scored.csv"], device="cpu", batch_size=16, log=lambda line: None)
    assert found["rows"] == 60 and found["spearman"] > 0.5  # the more words they share, the nearer
    assert found["tfidf_spearman"] > 0.8
    again = evaluate_run(lines.path, [place / "lines.txt"], device="cpu", batch_size=16, log=lambda line: None)
    assert "retrieval_accuracy" in again and "spearman" not in again


def test_a_run_killed_and_resumed_is_the_one_that_nobody_stopped(tmp_path: Path, nursery: Nursery) -> None:
    write_texts(tmp_path)
    sets = [word for name, value in (SETTINGS | {"model.stack.width": 16}).items() for word in
            ("--set", f"{name}={value}")]  # fmt: skip
    words = ["train", "lines.txt", "--task", "contrast", "--progress", "none", "--device", "cpu", *sets, "--out"]
    expect(nursery, [*words, "whole"], tmp_path, 0)
    expect(nursery, [*words, "run"], tmp_path, -signal.SIGKILL, "kill@step:8")
    expect(nursery, resume_words("run"), tmp_path, 0)
    assert not differing(tmp_path / "whole", tmp_path / "run")


def test_what_is_no_text_is_refused(place: Path, tmp_path: Path) -> None:
    (tmp_path / "numbers.csv").write_text("a,b\n1,2\n3,4\n")
    with pytest.raises(UserError, match="0 columns of text"):
        train(tmp_path / "numbers.csv", "contrast", out=tmp_path / "a", quiet=True)
    with pytest.raises(UserError, match="lines of text are split at random"):
        train(place / "lines.txt", "contrast", out=tmp_path / "b", quiet=True,
              settings={"data.split.valid_file": (str(place / "lines.txt"),)})  # fmt: skip


@pytest.mark.parametrize(("name", "temperature"), [("bert-base-tiny", 0.05), ("encoder-mini", 1.0)])
def test_it_starts_at_chance(name: str, temperature: float) -> None:
    """Texts that have nothing to do with each other are told apart by luck. (The vectors of encoder-mini point in all
    directions before it has learned, so that cosines over .05 make it sure of wrong answers: 8.7 nats where chance is
    4.2. With a vector common to all texts it starts at 4.2, and learns later: benchmarks/LOG.md.)"""
    sizes, count = Sizes(parts=["text"], vocab=200, length=16), 64
    model = find("contrast").fit_network(preset(name), name, sizes).build(seed=0).eval()
    drawn = torch.randint(5, 200, (2, count, 16), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        first, second = (model(text, mask=torch.ones_like(text, dtype=torch.bool)).pooled for text in drawn)
    objective = SentenceContrast(temperature=temperature)
    assert objective.losses_between(first, second).mean().item() == pytest.approx(math.log(count), rel=0.02)
    known = objective.losses_between(first, first).mean().item()  # control: texts that do belong together are found
    assert known < 0.85 * math.log(count)

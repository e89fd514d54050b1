"""The same rows at the command line, in Python, in an estimator and over HTTP: the same answers, the same errors."""

from __future__ import annotations

import base64
import csv
import io
import json
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anyformer
from anyformer import TabularClassifier, UserError
from anyformer.serving.predict_rows import predict_what
from tests.cli.trying import done, run
from tests.estimators.small import FIT
from tests.serving.folders import Folders, trained
from tests.serving.server import serving
from tests.training.test_detection import annotated
from tests.training.test_signals import clips, waves

SERIES = ["--task", "forecast", "--set", "data.series.look_back=32", "--set", "data.series.horizon=8", "--steps", "3"]
SMALL = [word for name in ("training.batch_size=4", "training.eval_every=2", "model.encoder.stack.depth=1")
         for word in ("--set", name)]  # fmt: skip
MAKERS: dict[str, tuple[Callable[[Path], Any], list[str]]] = {
    "clips": (lambda folder: [folder / word for word in clips(folder)], ["--steps", "3"]),
    "waves": (lambda folder: folder / waves(folder)[0], SERIES),
    "seen": (annotated, ["--task", "detect", "--steps", "2", *SMALL]),
}
GOOD: list[dict[str, Any]] = [
    {"size": 3.5, "shop": "north"}, {"size": None, "shop": "south"}, {"size": -1, "shop": None},
    {"size": 0.25, "shop": "nowhere"},
]  # fmt: skip


@pytest.fixture(scope="session")
def runs(folders: Folders) -> Callable[[str], Path]:
    found: dict[str, Path] = {}

    def run(kind: str) -> Path:
        if kind not in found:
            made = kind not in MAKERS
            found[kind] = folders[kind] if made else trained(folders.base / kind, *MAKERS[kind][:1], *MAKERS[kind][1])
        return found[kind]

    return run


@pytest.fixture(scope="session")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> tuple[TabularClassifier, Path]:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 120)
    cells = {"size": rng.normal(size=120) + 4 * y, "shop": np.where(y == 1, "north", "south").tolist()}
    model = TabularClassifier(**FIT).fit(cells, np.array(["no", "yes"])[y])
    return model, model.save(tmp_path_factory.mktemp("rule") / "model")


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ["size", "shop"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return path


def predicted(folder: Path, *words: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done("predict", str(folder), *words, "--json", "--quiet").out.splitlines()]


def test_a_table_has_the_same_answers_everywhere(fitted: tuple[TabularClassifier, Path], tmp_path: Path) -> None:
    model, folder = fitted
    loaded = anyformer.load(folder)
    labels, shares = loaded.predict(GOOD), loaded.predict_proba(GOOD).max(1).values.numpy()
    assert len(labels) == len(GOOD)
    assert model.predict(GOOD).tolist() == labels and model.predict_proba(GOOD).max(1) == pytest.approx(
        shares, abs=1e-5
    )
    served = predict_what(loaded)(GOOD)
    typed = predicted(folder, str(written(tmp_path / "new.csv", GOOD)))
    assert [one["label"] for one in served] == [one["prediction"] for one in typed] == labels
    for found in ([one["probability"] for one in served], [one["probability"] for one in typed]):
        assert found == pytest.approx(shares, abs=2e-6)
    (tmp_path / "new.jsonl").write_text("\n".join(map(json.dumps, GOOD)))
    assert [one["prediction"] for one in predicted(folder, str(tmp_path / "new.jsonl"))] == labels


@pytest.mark.parametrize(("row", "told"), [
    ({"size": "three", "shop": "north"}, "size: 'three' is not a number; give a number"),
    ({"size": "inf", "shop": "north"}, "size: 'inf' is not a number; give a number"),
])  # fmt: skip
def test_a_bad_row_is_named_in_the_same_words(
    row: Any, told: str, fitted: tuple[TabularClassifier, Path], tmp_path: Path
) -> None:
    model, folder = fitted
    loaded, rows = anyformer.load(folder), [*GOOD, row, GOOD[0]]
    for ask in (loaded.predict, loaded.predict_proba, model.predict, model.predict_proba):
        with pytest.raises(UserError) as caught:
            ask(rows)
        assert str(caught.value) == f"rows[4].{told}"
    errors = [one for one in predict_what(loaded)(rows) if isinstance(one, UserError)]
    assert [str(error) for error in errors] == [told]
    path = written(tmp_path / "new.csv", rows)
    assert run("predict", str(folder), str(path)).err.strip().splitlines()[0] == f"error: new.csv row 6, {told}"
    # Asked to skip, every row still has its place.
    found = loaded.predict(rows, on_bad_rows="skip")
    assert found == [*loaded.predict(GOOD), None, loaded.predict(GOOD)[0]]
    assert np.isnan(loaded.predict_proba(rows, on_bad_rows="skip").numpy()).all(1).tolist() == [False] * 4 + [
        True,
        False,
    ]
    said = done("predict", str(folder), str(path), "--skip-bad-rows", "--json")
    assert [json.loads(line)["prediction"] for line in said.out.splitlines()] == found
    assert f"new.csv row 6, {told}" in said.err


def test_no_answer_depends_on_the_rows_beside_it(fitted: tuple[TabularClassifier, Path]) -> None:
    loaded = anyformer.load(fitted[1])
    beside: list[dict[str, Any]] = [
        {"size": "2", "shop": 1.0},
        {"size": 7, "shop": True},
        {"size": " 1e1 ", "shop": 2.5},
    ]
    together = loaded.predict_proba([*GOOD, *beside]).numpy()
    alone = np.concatenate([loaded.predict_proba([row]).numpy() for row in (*GOOD, *beside)])
    assert together == pytest.approx(alone, abs=1e-6)


def test_other_kinds_have_the_same_answers_everywhere(runs: Callable[[str], Path], tmp_path: Path) -> None:
    texts = ["good film", "sad plot dull"]
    (tmp_path / "new.txt").write_text("\n".join(texts) + "\n")
    for kind, key in (("classifier", "label"), ("translator", "text")):
        loaded = anyformer.load(runs(kind))
        said = loaded.predict(texts)
        assert [one[key] for one in predict_what(loaded)(texts)] == said
        assert done("predict", str(runs(kind)), str(tmp_path / "new.txt"), "--quiet").out.splitlines() == said

    loaded, sentence = anyformer.load(runs("tagger")), "Anna saw Rome"
    (tags,) = loaded.predict([sentence])
    assert len(tags) == 3 and loaded.predict([sentence.split()]) == [tags]
    pairs = [(pair["word"], pair["tag"]) for pair in predict_what(loaded)([sentence])[0]["tags"]]
    (tmp_path / "words.txt").write_text(sentence + "\n")
    lines = done("predict", str(runs("tagger")), str(tmp_path / "words.txt"), "--quiet").out.strip().splitlines()
    assert [tuple(line.split("\t")) for line in lines] == pairs == list(zip(sentence.split(), tags, strict=True))

    heard = runs("clips")
    clip = sorted((heard.parent / "clips" / "high").iterdir())[0]
    loaded = anyformer.load(heard)
    (label,) = loaded.predict([str(clip)])
    assert loaded.predict([clip.read_bytes()]) == loaded.predict([clip]) == [label]
    assert predict_what(loaded)([url(clip.read_bytes(), "audio/wav")])[0]["label"] == label
    assert predicted(heard, str(clip))[0]["prediction"] == label


def test_a_detector_sees_the_same_everywhere(runs: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import Image

    from anyformer.tasks import detect as detecting

    monkeypatch.setattr(detecting.object_rows, "__defaults__", (0.0,))  # however unsure it still is
    folder = runs("seen")
    path = sorted((folder.parent / "images").iterdir())[0]
    loaded = anyformer.load(folder)
    (objects,) = loaded.predict([str(path)])
    with Image.open(path) as image:
        image.load()
        assert objects and loaded.predict([image]) == loaded.predict([np.asarray(image)]) == [objects]
    assert predict_what(loaded)([url(path.read_bytes(), "image/png")]) == [{"objects": objects}]
    assert predicted(folder, str(path)) == [{"image": str(path)} | one for one in objects]


def test_a_forecast_is_the_same_everywhere(runs: Callable[[str], Path], tmp_path: Path) -> None:
    folder = runs("waves")
    loaded = anyformer.load(folder)
    row = {"a": [round(0.1 * i, 3) for i in range(40)], "b": [5.0] * 40}
    (ahead,) = loaded.predict([row])
    assert loaded.predict(row) == [ahead] and predict_what(loaded)([row]) == [{"forecast": ahead}]
    (tmp_path / "new.csv").write_text(
        "a,b\n" + "\n".join(f"{a},{b}" for a, b in zip(*row.values(), strict=True)) + "\n"
    )
    steps = predicted(folder, str(tmp_path / "new.csv"))
    for name, values in ahead.items():
        assert [step[name] for step in steps] == pytest.approx(values)
    (tmp_path / "bad.csv").write_text("a,b\n1,2\nthree,4\n")
    told = "'three' is not a number; give a number"
    assert f"bad.csv row 3, a: {told}" in run("predict", str(folder), str(tmp_path / "bad.csv")).err
    with pytest.raises(UserError, match=r"rows\[0\]\.a\[1\]: 'three' is not a number"):
        loaded.predict([{"a": [1, "three"], "b": [2, 4]}])


def url(data: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


WRONG: list[Any] = [
    None, 3, "no such file", b"junk", [], {}, [None], [3.5j], [{"nothing": 1}], [object()], np.zeros((2, 7)), iter([]),
    [[]], [{}], [b"junk"],
]  # fmt: skip


@pytest.mark.parametrize("kind", ["table", "tagger", "pictures", "clips", "waves", "seen"])
def test_nothing_that_is_given_ends_in_a_raw_error(kind: str, runs: Callable[[str], Path]) -> None:
    loaded = anyformer.load(runs(kind))
    for given in WRONG:
        with pytest.raises(UserError):
            loaded.predict(given)


# ---------------------------------------------------------------- no disk

WATCHED = """
import json, os, sys
import anyformer
from anyformer.serving.predict_rows import predict_what
touched, watching = [], False
def watch(event, args):
    if not watching:
        return
    if event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        touched.append(str(args[0]))
    elif event in ("os.mkdir", "tempfile.mkdtemp", "tempfile.mkstemp"):
        touched.append(event)
sys.addaudithook(watch)
for folder, how, rows in json.loads(sys.stdin.read()):
    loaded = anyformer.load(folder)
    ask = predict_what(loaded)
    ask(rows)  # whatever is imported late is imported now
    touched.clear()
    watching = True
    answers = ask(rows)
    if how == "python":
        loaded.predict(rows)
    if how == "control":
        open(os.devnull, "w").close()
    watching = False
    print(json.dumps([len(touched), [str(one) for one in answers if isinstance(one, Exception)]]))
"""


def test_rows_in_memory_touch_no_disk(runs: Callable[[str], Path]) -> None:
    from PIL import Image

    sink = io.BytesIO()
    Image.new("RGB", (16, 16)).save(sink, "PNG")
    clip = sorted((runs("clips").parent / "clips" / "high").iterdir())[0].read_bytes()
    flower = {"size": 1, "height": 2, "colour": "red"}
    asked: list[tuple[str, str, list[Any]]] = [
        ("table", "python", [flower]), ("classifier", "python", ["good film", "sad plot dull"]),
        ("tagger", "python", ["Anna saw Rome"]), ("translator", "python", ["one two"]),
        ("pictures", "http", [url(sink.getvalue(), "image/png")]), ("clips", "http", [url(clip, "audio/wav")]),
        ("seen", "http", [url(sink.getvalue(), "image/png")]), ("waves", "python", [{"a": [1.0] * 9, "b": [2.0] * 9}]),
        ("table", "control", [flower]),
    ]  # fmt: skip
    given = json.dumps([(str(runs(kind)), how, rows) for kind, how, rows in asked])
    found = subprocess.run([sys.executable, "-c", WATCHED], input=given, text=True, capture_output=True, timeout=240,
                           check=False)  # fmt: skip
    assert found.returncode == 0, found.stderr
    for (kind, how, _), line in zip(asked, found.stdout.splitlines(), strict=True):
        assert json.loads(line) == [1 if how == "control" else 0, []], kind


def test_a_server_that_may_not_write_a_byte_still_answers(runs: Callable[[str], Path]) -> None:
    rows = [{"size": 1, "height": 2, "colour": "red"}]
    with serving(runs("table"), "--quiet") as server:
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (0, 0))
        for _ in range(3):
            answer = server.post("/v1/predict", {"rows": rows})
            assert answer.status_code == 200, answer.text
        assert server.get("/health/ready").status_code == 200

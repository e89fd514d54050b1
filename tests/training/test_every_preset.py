"""Every preset from the first command to the last: it trains, goes on, is judged and answers, on data that it reads.

A preset is tried because it exists: the kind of data is the first that the library fits it to.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from anyformer.core.towers import Towers
from anyformer.data.sizes import Sizes
from anyformer.errors import UserError
from anyformer.presets import PRESETS, preset, preset_names
from tests.cli import made
from tests.cli.trying import done, run, standing_in
from tests.tasks_by_name import network
from tests.training.test_detection import annotated
from tests.training.test_signals import clips, waves
from tests.training.tiny import write_pictures

ROWS = 40
# Trained by other means than `train`: pairs that are told apart within a batch.
ELSEWHERE = (Towers,)


def head_of(path: Path) -> Path:
    """The file with fewer rows."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(lines[: ROWS + 1]), encoding="utf-8")
    return path


def pairs(folder: Path) -> list[str]:
    return [head_of(made.pairs(folder)).name, "--set", "objective.num_beams=2"]


def described(folder: Path) -> list[str]:
    """Pictures with a sentence about each."""
    return [made.captions(folder, ROWS).name, "--task", "translate", "--target", "caption"]


def objects(folder: Path) -> list[str]:
    return [str(annotated(folder / "a").relative_to(folder)), "--task", "detect"]


def captions(folder: Path) -> list[str]:
    """A text beside a picture."""
    return [head_of(made.mixed(folder)).name, "--target", "y", "--inputs", "text", "--inputs", "picture"]


def sentences(folder: Path) -> list[str]:
    return [made.tagged(folder).name]


def reviews(folder: Path) -> list[str]:
    return [head_of(made.reviews(folder)).name, "--target", "label"]


def table(folder: Path) -> list[str]:
    return [head_of(made.flowers(folder)).name, "--target", "kind"]


def pictures(folder: Path) -> list[str]:
    write_pictures(folder / "pictures")
    return ["pictures"]


def drawings(folder: Path) -> list[str]:
    """Pictures to draw others like, and the classes to draw."""
    write_pictures(folder / "pictures")
    (folder / "classes.txt").write_text("bright\ndark\n")
    return ["pictures", "--task", "adversarial"]


def book(folder: Path) -> list[str]:
    return [head_of(made.book(folder)).name]


def looked_at(folder: Path, kind: str) -> list[str]:
    """What `look` is given: an image or a recording, a row, a class to draw, or a text."""
    files = sorted(path for path in folder.rglob("*") if path.suffix in (".png", ".jpg", ".wav"))
    if kind == "drawings":
        return ["dark"]
    if kind == ONLY_TWO_STREAMS:
        return [json.dumps({"text": "a good day", "picture": str(files[0])})]
    if kind == "table":
        return [json.dumps({"size": 1.5, "height": 2, "colour": "red"})]
    if kind == "series":
        return [json.dumps({"a": [0.1 * i for i in range(40)], "b": [5.0] * 40})]
    return [str(files[0]) if files else "a good day"]


Kind = tuple[str, Sizes, Callable[[Path], list[str]]]
KINDS: dict[str, Kind] = {
    "pairs": ("translate", Sizes(parts=["text"], vocab=99, length=16), pairs),
    "described": ("translate", Sizes(parts=["image"], vocab=99, length=16, image=12), described),
    "objects": ("detect", Sizes(parts=["image"], image=32, classes=2), objects),
    "series": ("forecast", Sizes(parts=["series"], length=32, numbers=2, outputs=8), waves),
    "captions": ("classify", Sizes(parts=["text", "image"], vocab=99, length=16, image=12, classes=2), captions),
    "book": ("lm", Sizes(parts=["text"], vocab=99, length=16), book),
    "sentences": ("tag", Sizes(parts=["text"], vocab=99, length=16, classes=4), sentences),
    "reviews": ("classify", Sizes(parts=["text"], vocab=99, length=16, classes=2), reviews),
    "table": ("classify", Sizes(parts=["table"], numbers=2, categories=[4], classes=3), table),
    "pictures": ("classify", Sizes(parts=["image"], image=12, classes=2), pictures),
    "drawings": ("adversarial", Sizes(parts=["image"], image=32, classes=2), drawings),
    "clips": ("classify", Sizes(parts=["audio"], sample_rate=1000, samples=290, loudness=[0.0, 1.0], classes=2), clips),
}
ONLY_TWO_STREAMS = "captions"  # any reader of text or images also takes both in one sequence; it has a kind of its own


def kinds_of(name: str) -> list[str]:
    """The kinds of data that a preset can be fitted to."""
    found = []
    for kind, (task, sizes, _) in KINDS.items():
        try:
            network(name, task, sizes)
            found.append(kind)
        except UserError:
            continue
    own = [kind for kind in found if kind != ONLY_TWO_STREAMS]
    return own or found


def small_ones() -> list[str]:
    """The tiny twins, of equal ones the first: their larger sisters differ in nothing but size."""
    names = [name for name in preset_names() if name.endswith("-tiny")]
    seen: dict[str, str] = {}
    for name in names:
        seen.setdefault(preset(name).to_json(), name)
    return list(seen.values())


CELLS = [(name, kinds_of(name)[0]) for name in small_ones() if not isinstance(preset(name), ELSEWHERE)]
# One encoder and one decoder with learned positions on every other kind of text: special tokens take positions too.
CELLS += [(name, kind) for name in ("bert-base-tiny", "gpt2-tiny") for kind in kinds_of(name)[1:]]


def test_every_preset_has_a_tiny_twin() -> None:
    assert [name for name in PRESETS if not name.endswith("-tiny") and f"{name}-tiny" not in PRESETS] == []


@pytest.mark.parametrize(("name", "kind"), CELLS)
def test_it_trains_goes_on_is_judged_and_answers(name: str, kind: str, tmp_path: Path) -> None:
    words = KINDS[kind][2](tmp_path)
    few = ["--set", "training.threads=1", "--set", "training.workers=0", "--set", "training.batch_size=4", "--quiet"]
    with standing_in(tmp_path):
        done("train", *words, "--preset", name, "--out", "run", "--device", "cpu", "--steps", "2", *few)
        done("resume", "run", "--set", "training.steps=3", "--allow-change", "steps", "--quiet")
        facts = json.loads(Path("run/run.json").read_text())
        assert (facts["status"], facts["step"], facts["reason"]) == ("done", 3, "")
        assert Path("run/report.html").is_file()
        judged = done("evaluate", "run", "--json", "--device", "cpu").json
        assert judged["split"] in ("test", "valid") and judged["fid" if kind == "drawings" else "loss"] > 0
        if kind == "book":
            assert done("generate", "run", "The good", "--max-new-tokens", "4", "--device", "cpu").code == 0
        else:
            asked = "classes.txt" if kind == "drawings" else words[0]
            assert done("predict", "run", asked, "--device", "cpu").out
        assert done("look", "run", "--json", "--device", "cpu").json["views"]  # at an example of its own
        seen = done("look", "run", *looked_at(tmp_path, kind), "--html", "inside.html", "--json", "--device", "cpu")
        assert Path("inside.html").stat().st_size > 2**17 and any(view["applies"] for view in seen.json["views"])


@pytest.mark.parametrize("name", [name for name in small_ones() if isinstance(preset(name), ELSEWHERE)])
def test_what_train_cannot_train_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    for kind in ("pictures", "reviews"):
        words = KINDS[kind][2](tmp_path)
        with standing_in(tmp_path):
            said = run("train", *words, "--preset", name, "--out", "run", "--device", "cpu", "--steps", "2")
        assert said.code == 2 and len(said.errors) == 1 and not (tmp_path / "run").exists()

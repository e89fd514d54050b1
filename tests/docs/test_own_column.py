"""The page on a kind of column of one's own: its file and its commands are run as they stand."""

from __future__ import annotations

import csv
import random
import re
import shlex
from pathlib import Path

from tests.training.nursery import Nursery

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "own-column.md").read_text(encoding="utf-8")
SMALL = ("--steps", "40", "--set", "training.threads=1", "--device", "cpu", "--progress", "none")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)


def write_paints(folder: Path) -> None:
    """Red paints are liked, blue ones are not; the price says nothing."""
    chance = random.Random(0)
    with (folder / "paints.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["price", "paint", "liked"])
        for _ in range(200):
            red, blue = chance.randrange(256), chance.randrange(256)
            paint = f"#{red:02x}{chance.randrange(256):02x}{blue:02x}"
            writer.writerow([round(chance.uniform(1, 9), 2), paint, "yes" if red > blue else "no"])
    (folder / "new.csv").write_text("price,paint\n3,#ff0000\n3,#0000ff\n3,\n")


def test_the_file_of_the_page_is_all_there_is_to_do(tmp_path: Path, nursery: Nursery) -> None:
    (source,) = blocks("python")
    (tmp_path / "colours.py").write_text(source)
    write_paints(tmp_path)
    said = ""
    for line in blocks("sh")[0].splitlines():
        words = shlex.split(line)
        assert words[0] == "anyformer"
        more = SMALL if words[1] == "train" else ("--device", "cpu")
        done = nursery.command(*words[1:], *more, where=tmp_path)
        assert done.returncode == 0, done.stderr
        said += done.stderr
    assert re.search(r"column   paint +colour +\d+ colours", said)
    with (tmp_path / "liked.csv").open() as file:
        assert [row["prediction"] for row in csv.DictReader(file)][:2] == ["yes", "no"]


def test_every_name_of_the_page_is_one_of_the_contract() -> None:
    from anyformer.data.columns.base import Column
    from anyformer.data.columns.look import Scan

    asked = re.findall(r"`(\w+)(?:\([^`]*\))?`", PAGE[PAGE.index("| the library asks") :].split("\n\n")[0])
    known = {*dir(Column), "TableColumn"}
    assert len(asked) > 15 and [name for name in asked if name not in known] == []
    assert [name for name in re.findall(r"`\.(\w+)", PAGE) if not callable(getattr(Scan, name)) and name != "few"] == []

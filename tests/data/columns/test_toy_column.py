"""A kind of column that the library does not know, from one file outside it (toy_column.py): its whole life.

Every verb runs in a process of its own, which knows the kind by `--import` alone.
"""

from __future__ import annotations

import csv
import json
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anyformer import UserError, load
from anyformer.data.columns.look import look
from anyformer.data.in_memory import frame_of
from anyformer.data.preprocess import Preprocess
from tests.data.columns.toy_column import Place, Places
from tests.serving.server import serving
from tests.training.nursery import Nursery
from tests.training.tiny import differing

OWN = ("--import", "tests.data.columns.toy_column")
ROOT = Path(__file__).resolve().parents[3]
FOUND = {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}  # where the module is
SETTINGS = ("training.threads=1", "training.save_every=20", "training.eval_every=20", "model.stack.depth=1",
            "model.stack.width=32")  # fmt: skip
SMALL = ("--steps", "60", "--progress", "none", "--device", "cpu", *(f"--set={setting}" for setting in SETTINGS))
VIENNA, SYDNEY = "48.2082,16.3738", "-33.8688,151.2093"


def write_shops(path: Path, rows: int = 300) -> Path:
    """Shops north and south of the equator: the place tells, their size does not; some places are missing."""
    chance = random.Random(0)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["size", "where", "side"])
        for number in range(rows):
            north, east = chance.uniform(-60, 60), chance.uniform(-180, 180)
            where = "" if number % 30 == 7 else f"{north:.4f},{east:.4f}"
            writer.writerow([round(chance.gauss(0, 1), 3), where, "north" if north > 0 else "south"])
    return path


def done(nursery: Nursery, *words: str, where: Path) -> str:
    """The command line in a process of its own, which imports the kind of column first."""
    found = nursery.command(*words, *OWN, where=where)
    assert found.returncode == 0, found.stderr
    return found.stdout


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, nursery: Nursery) -> Path:
    """A folder with the data and a finished run; tests look at it, nothing more."""
    folder = tmp_path_factory.mktemp("places")
    write_shops(folder / "shops.csv")
    done(nursery, "train", "shops.csv", "--target", "side", "--out", "run", *SMALL, where=folder)
    return folder


def facts_of(run: Path) -> dict[str, Any]:
    return json.loads((run / "evaluation.json").read_text())


def test_it_is_recognised_by_looking_and_by_name() -> None:
    cells = [VIENNA, SYDNEY, "", "0.0,0.0"] * 10
    found = look(frame_of({"a": cells, "b": ["1,234", "2,345"] * 20, "c": list(range(40))}), {})
    assert found["a"].kind == "place" and found["a"].column is Place and found["a"].missing == 10
    assert found["a"].reason == "places from -33.8688 to 48.2082 north, 0 to 151.209 east"
    assert found["b"].kind != "place" and found["c"].kind == "number"  # controls
    assert look(frame_of({"a": cells}), {"a": "text"})["a"].kind == "text"


def test_it_trains_beside_numbers_through_its_own_embedding(home: Path, nursery: Nursery) -> None:
    predictor = load(home / "run")
    kept = predictor.preprocess
    assert kept is not None and kept.parts == ("table", "place")
    assert Preprocess.from_json(kept.to_json()) == kept
    place = next(column for column in kept.columns or () if isinstance(column, Place))
    assert place.centre is not None and abs(place.centre[0]) < 10
    assert predictor.spec.embed.parts[1] == Places(count=1)
    assert facts_of(home / "run")["metrics"]["test"]["accuracy"] > 0.85
    done(
        nursery, "train", "shops.csv", "--target", "side", "--out", "blind", "--types", "where=skip", *SMALL, where=home
    )
    assert facts_of(home / "blind")["metrics"]["test"]["accuracy"] < 0.75  # control: the numbers alone say nothing


def test_a_killed_run_goes_on_to_the_same_bits(home: Path, tmp_path: Path, nursery: Nursery) -> None:
    (tmp_path / "shops.csv").write_bytes((home / "shops.csv").read_bytes())
    words = ("train", "shops.csv", "--target", "side", "--out", "run", *SMALL)
    assert nursery.command(*words, *OWN, where=tmp_path, fault="kill@step:31").returncode == -9
    assert differing(home / "run", tmp_path / "run")  # control: what was killed is not whole
    done(nursery, "resume", "run", "--progress", "none", where=tmp_path)
    assert differing(home / "run", tmp_path / "run") == []


def test_it_is_evaluated_beside_baselines_that_see_the_same_places(home: Path, nursery: Nursery) -> None:
    baselines = facts_of(home / "run")["baselines"]
    assert baselines["trivial"]["metrics"]["accuracy"] < 0.7
    assert baselines["strong"]["metrics"]["accuracy"] > 0.85  # a simple learner has the points on the sphere too
    judged = json.loads(done(nursery, "evaluate", "run", "shops.csv", "--device", "cpu", "--json", where=home))
    assert judged["accuracy"] > 0.85


def test_predictions_and_what_is_no_place(home: Path, nursery: Nursery) -> None:
    (home / "new.csv").write_text(f'size,where\n0.1,"{VIENNA}"\n0.1,"{SYDNEY}"\n0.2,\n')
    lines = done(nursery, "predict", "run", "new.csv", "--device", "cpu", where=home).splitlines()
    said = [row["prediction"] for row in csv.DictReader(lines)]
    assert said[:2] == ["north", "south"] and len(said) == 3
    predictor = load(home / "run")
    assert predictor.predict([{"size": 0.1, "where": VIENNA}, [0.1, SYDNEY]]) == ["north", "south"]
    for wrong in ("the moon", "91,0", "48.2", 48.2, [48.2, 16.4]):
        with pytest.raises(UserError, match=r"is not a place like 48.21,16.37") as refused:
            predictor.predict([{"size": 0.1, "where": wrong}])
        assert refused.value.where == "rows[0].where"


def test_the_report_and_the_log_name_it(home: Path) -> None:
    run = home / "run"
    kept = json.loads((run / "data.json").read_text())
    assert kept["columns"]["where"] == {"kind": "place", "missing": 10} and kept["sizes"]["places"] == 1
    assert any(line.startswith("column   where") and "place" in line for line in kept["notes"])
    worst = facts_of(run)["facts"]["worst"]
    assert worst and all("where=" in row["shown"] for row in worst)
    assert worst[0]["shown"] in (run / "report.html").read_text()


def test_a_server_answers_it(home: Path) -> None:
    with serving(home / "run", *OWN, env=FOUND) as server:
        rows = [{"size": 0.1, "where": VIENNA}, {"size": 0.1, "where": SYDNEY}, {"size": 0.1, "where": None}]
        said = server.post("/v1/predict", {"model": "run", "rows": rows}).json()["data"]
        assert [row["label"] for row in said][:2] == ["north", "south"] and len(said) == 3
        refused = server.post("/v1/predict", {"model": "run", "rows": [{"size": 0.1, "where": "the moon"}]})
        assert refused.status_code == 400 and "is not a place" in refused.text


def test_without_the_file_the_model_is_refused_in_one_line(home: Path, nursery: Nursery) -> None:
    (home / "new.csv").write_text(f'size,where\n0.1,"{VIENNA}"\n')
    found = nursery.command("predict", "run", "new.csv", where=home)
    assert found.returncode == 2 and "Traceback" not in found.stderr
    assert len(found.stderr.strip().splitlines()) == 1


def test_points_on_the_sphere_are_neighbours_across_the_date_line() -> None:
    column = Place(name="where")
    west, east, far = column.encode(np.array([[10.0, -179.9], [10.0, 179.9], [10.0, 0.0]]))
    assert np.linalg.norm(west - east) < 0.01 < np.linalg.norm(west - far)

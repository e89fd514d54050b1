"""One command in several processes: the same training as in one, stopped and failing as one."""

from __future__ import annotations

import ast
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.training.distributed.launch import run, start
from tests.training.nursery import Nursery
from tests.training.tiny import CASES, Case, differing, logged_lines, resume, steps_of, write_data

SETTINGS = {"training.workers": 0, "training.average": 0, "training.ema": 0.9, "training.micro_batch_size": 3}
TABLE = Case(("table.csv",), CASES["table"].settings | SETTINGS | {"training.keep": 4}, words=("--target", "y"))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("several")
    write_data(where)
    return where


@pytest.fixture(scope="module")
def two(place: Path, nursery: Nursery) -> Path:
    """A finished run of two processes that nobody stopped; tests look at it and copy it."""
    processes = run(nursery, TABLE.train("two"), place, 2)
    assert processes.children[1].output == ""  # the first alone reports
    return place / "two"


def test_one_process_loads_nothing_of_it() -> None:
    names = ("anyformer.training.distributed.", "torch.distributed.fsdp")
    code = f"import sys, anyformer.training.train; print([name for name in sys.modules if name.startswith({names})])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.rpartition(".")[2] for name in ast.literal_eval(done.stdout)}
    assert loaded == {"world", "peers", "parallel", "parts"}


def test_two_processes_train_as_one_does(place: Path, nursery: Nursery, two: Path) -> None:
    """64 rows in batches of 12: the last batch of an epoch holds 4, and one process has a filler."""
    code, said = nursery.run(TABLE.train("one"), place)
    assert code == 0, said
    one, both = logged_lines(place / "one"), logged_lines(two)
    assert [line["rows"] for line in one] == [line["rows"] for line in both]
    for ours, theirs in zip(one, both, strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-4)
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-3)
    assert {path.name for path in (place / "one").iterdir()} == {path.name for path in two.iterdir()}
    assert steps_of(place / "one") == steps_of(two)


def test_all_stop_at_one_step_and_go_on_to_the_same_bits(place: Path, nursery: Nursery, two: Path) -> None:
    processes = start(nursery, TABLE.train("stopped"), place, 2)
    processes.until_logged(place / "stopped", 2)
    processes.send(signal.SIGTERM)
    began = time.monotonic()
    assert processes.wait() == [143, 143] and time.monotonic() - began < 30
    saved = steps_of(place / "stopped")[-1]
    assert f"stopped at step {saved} of 12; saved" in processes.output and processes.errors == []
    assert processes.output.count("saved. Resume with") == 1
    again = start(nursery, TABLE.train("stopped"), place, 2, restarts=1)  # the same words, as a launcher restarts them
    assert again.wait() == [0, 0] and f"resume   from step {saved} of 12" in again.output, again.output
    assert differing(place / "stopped", two) == []


def test_a_run_goes_on_with_another_number_of_processes(place: Path, nursery: Nursery, two: Path) -> None:
    shutil.copytree(two, place / "fewer")
    for step in (9, 12):
        shutil.rmtree(place / "fewer" / "checkpoints" / f"step-{step:06}", ignore_errors=True)
    facts = json.loads((place / "fewer" / "run.json").read_text())
    (place / "fewer" / "run.json").write_text(json.dumps(facts | {"status": "interrupted", "step": 6}))
    assert steps_of(place / "fewer") and steps_of(place / "fewer")[-1] < 12
    refused = start(nursery, resume("fewer"), place, 5)
    assert refused.wait() == [2] * 5
    assert len(refused.errors) == 1 and "global batch 12 is not divisible by 5 processes" in refused.errors[0]
    code, said = nursery.run(resume("fewer"), place)
    assert code == 0 and "processes is 1, was 2" in said, said
    for ours, theirs in zip(logged_lines(place / "fewer"), logged_lines(two), strict=True):
        assert ours["rows"] == theirs["rows"] and ours["loss"] == pytest.approx(theirs["loss"], rel=1e-4)


PLAIN = {f"model.stack.block.{name}": 0 for name in ("dropout", "mixer.dropout", "feed.dropout")}
TEXT = Case(("book.txt",), CASES["text"].settings | PLAIN | {"training.micro_batch_size": 12})


def test_a_run_goes_on_in_another_way_on_other_processes(place: Path, nursery: Nursery) -> None:
    """fsdp on four, tensor on two, one alone: stopped between them, one training all the same."""
    code, said = nursery.run(TEXT.train("text"), place)
    assert code == 0, said
    four = start(nursery, TEXT.train("parts", training__parallel="fsdp"), place, 4, faults={2: "term@step:4"})
    assert four.wait() == [143] * 4, four.output
    words = [*resume("parts"), "--set", "training.parallel=tensor"]
    two = start(nursery, words, place, 2, faults={1: "term@step:3"})
    assert two.wait() == [143] * 2, two.output
    code, said = nursery.run(resume("parts"), place)
    assert code == 0 and "processes is 1, was 2" in said, said
    events = [json.loads(line) for line in (place / "parts" / "events.jsonl").read_text().splitlines()]
    assert [event["step"] for event in events if event["event"] == "resume"] == [
        5,
        9,
    ]  # a stop is agreed on with the next step
    for ours, theirs in zip(logged_lines(place / "parts"), logged_lines(place / "text"), strict=True):
        assert ours["rows"] == theirs["rows"] and ours["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
    sizes = [
        {path.name: path.stat().st_size for path in (place / run / "checkpoints" / "step-000012").glob("*.safetensors")}
        for run in ("parts", "text")
    ]
    assert sizes[0] == sizes[1] and len(sizes[0]) == 2


ADAPTED = {"training.lora": "LoRA", "training.lora.rank": 3, "training.optimizer": "Muon", "training.ema": 0.9,
           "training.steps": 12, "training.batch_size": 12, "training.micro_batch_size": 12, "training.threads": 1,
           "training.workers": 0, "training.save_every": 3, "training.eval_every": 6}  # fmt: skip


def test_adapters_and_muon_go_on_in_another_way_on_other_processes(place: Path, nursery: Nursery) -> None:
    """LoRA on a trained model by Muon: fsdp on two, tensor on two, one alone; stopped between them."""
    sets = [f"{name}={value}" for name, value in ADAPTED.items()]
    words = ["train", "book.txt", "--from", "text", "--progress", "none", "--device", "cpu",
             *(word for pair in sets for word in ("--set", pair))]  # fmt: skip
    code, said = nursery.run([*words, "--out", "adapted"], place)
    assert code == 0, said
    for again, faults, ends in (
        ([*words, "--out", "cut", "--set", "training.parallel=fsdp"], {1: "term@step:4"}, 5),
        ([*resume("cut"), "--set", "training.parallel=tensor"], {1: "term@step:3"}, 9),
    ):
        processes = start(nursery, again, place, 2, faults=faults)
        assert processes.wait() == [143] * 2 and steps_of(place / "cut")[-1] == ends, processes.output
    code, said = nursery.run(resume("cut"), place)
    assert code == 0 and "processes is 1, was 2" in said, said
    for ours, theirs in zip(logged_lines(place / "cut"), logged_lines(place / "adapted"), strict=True):
        assert ours["rows"] == theirs["rows"] and ours["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
    assert (place / "cut" / "adapter").is_dir()


def test_a_batch_that_cannot_be_shared_is_refused_before_there_is_a_run(place: Path, nursery: Nursery) -> None:
    processes = start(nursery, TABLE.train("odd", training__batch_size=32, training__micro_batch_size=32), place, 3)
    assert processes.wait() == [2, 2, 2]
    (line,) = processes.errors
    assert "global batch 32 is not divisible by 3 processes" in line and "30 or 33" in line
    assert not (place / "odd").exists() and not list(place.glob(".new-*"))


@pytest.mark.parametrize(
    "parallel, settings, words",
    [
        ("tensor", {"model.stack.block.mixer.heads": 1}, "heads 1 is not divisible by 2 processes"),
        ("fsdp", {"training.precision": "fp16"}, "fp16 has one scale"),
    ],
)
def test_what_weights_in_parts_cannot_do_is_refused(
    place: Path, nursery: Nursery, parallel: str, settings: dict[str, str], words: str
) -> None:
    case = Case(TEXT.files, TEXT.settings | settings)
    processes = start(nursery, case.train("refused", training__parallel=parallel), place, 2)
    assert processes.wait() == [2, 2], processes.output
    assert len(processes.errors) == 1 and words in processes.errors[0], processes.output
    assert not (place / "refused").exists()


def test_two_networks_that_move_in_turn_are_refused(place: Path, nursery: Nursery) -> None:
    words = ["train", "pictures", "--task", "adversarial", "--out", "gan", "--device", "cpu"]
    processes = start(nursery, words, place, 2)
    assert processes.wait() == [2, 2] and not (place / "gan").exists(), processes.output
    assert len(processes.errors) == 1 and "moves two networks in turn" in processes.errors[0]


@pytest.mark.parametrize(
    "words", [["train", "table.csv", "--stepps", "3"], ["train", "no.csv"], ["train", "table.csv", "--set", "x=1"],
              ["resume", "nowhere"], ["resume", "two", "--set", "training.parallel=many"]],
)  # fmt: skip
def test_a_mistake_in_the_command_is_told_once(place: Path, nursery: Nursery, two: Path, words: list[str]) -> None:
    processes = start(nursery, words, place, 2)
    assert processes.wait() == [2, 2], processes.output
    assert len(processes.errors) == 1 and "Traceback" not in processes.output, processes.output


@pytest.mark.parametrize(
    "fault, code, words",
    [
        ("oom@step:5", 4, "rank 1 at step 2: "),
        ("eio@step:5", 1, "rank 1 at step 2: OSError"),
        ("nan-loss@step:5", 3, "rows ["),
    ],
)
def test_what_fails_in_one_process_ends_all_and_is_told_once(
    place: Path, nursery: Nursery, fault: str, code: int, words: str
) -> None:
    """Two micro-batches a step: the fifth is in step 3, when two are done."""
    name = fault.partition("@")[0]
    processes = start(nursery, TABLE.train(name), place, 2, faults={1: fault})
    assert processes.wait() == [code, code], processes.output
    assert len(processes.errors) == 1 and words in processes.errors[0], processes.output
    assert json.loads((place / name / "run.json").read_text())["status"] == "failed"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_process_that_is_gone_ends_the_others_within_a_minute(
    place: Path, nursery: Nursery, number: signal.Signals
) -> None:
    processes = start(nursery, TABLE.train(number.name, training__steps=10**6, training__compile="false"), place, 2)
    processes.until_logged(place / number.name, 3)
    processes.children[1].send(number)
    began = time.monotonic()
    assert processes.children[0].wait() == 4, processes.output
    assert time.monotonic() - began < 45  # a launcher needs some more to remove one that was stopped
    processes.children[1].send(signal.SIGKILL)
    (line,) = processes.errors
    assert "rank 1 at step " in line and "no sign of life" in line
    assert "rank 1" in json.loads((place / number.name / "run.json").read_text())["reason"]

"""Names, cells, labels and texts from files never act on the terminal they are shown on."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

TITLE = "\x1b]owned\x07"  # sets the title of the window, in some terminals
WIPE = "\x1b[2J"  # clears the screen
RED = "\x9b31m"  # the same in one C1 character
TURN = "\u202e"  # writes on from right to left
ACTING = (TITLE, "\x1b]", WIPE, RED, TURN)
PROGRAM = """
import json, sys
from anyformer.cli import main
codes = [main(words) for words in json.loads(sys.argv[1])]
print("codes", codes)
"""


def on_terminal(folder: Path, *lines: list[str]) -> str:
    """What a terminal gets from several command lines, one after the other in one process."""
    master, slave = pty.openpty()
    env = os.environ | {"TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", "OMP_NUM_THREADS": "1"}
    child = subprocess.Popen([sys.executable, "-c", PROGRAM, json.dumps(lines)], stdin=slave, stdout=slave,
                             stderr=slave, env=env, cwd=folder, close_fds=True)  # fmt: skip
    os.close(slave)
    data = b""
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        data += part
    os.close(master)
    assert child.wait(timeout=120) == 0, data.decode("utf-8", "replace")
    return data.decode("utf-8")


def hostile_table(path: Path) -> Path:
    rows = [f"{at % 7},{'up' if at % 2 else f'down{RED}'},{at % 3}{TITLE}{WIPE}" for at in range(60)]
    path.write_text(f"size{TITLE},label{TURN},colour{RED}\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("progress", ["bar", "lines"])
def test_no_verb_lets_data_act(tmp_path: Path, progress: str) -> None:
    table = hostile_table(tmp_path / f"table{WIPE}.csv").name
    steps = ["--set", "training.steps=3", "--device", "cpu", "--progress", progress]
    seen = on_terminal(
        tmp_path,
        ["check", table, "--target", f"label{TURN}"],
        ["train", table, "--target", f"label{TURN}", "--out", f"run{RED}", *steps],
        ["predict", f"run{RED}", table],
        ["evaluate", f"run{RED}", table],
        ["train", table, "--target", f"nothing{TITLE}"],
        ["train", f"missing{WIPE}.csv"],
        ["runs", "list", "."],
        ["runs", "show", f"run{RED}"],
    )
    assert "codes [0, 0, 0, 0, 2, 2, 0, 0]" in seen, seen
    assert not [text for text in ACTING if text in seen]
    for shown in ("size\\x1b]owned\\x07", "label\\u202e", "down\\x9b31m", "missing\\x1b[2J.csv"):
        assert shown in seen, shown


def test_data_for_a_pipe_stays_as_it_is(tmp_path: Path) -> None:
    """The control: the same predictions in a pipe hold the cells byte for byte, and so does JSON once it is read."""
    table = hostile_table(tmp_path / "table.csv")
    target = f"label{TURN}"
    lines = [
        [
            "train",
            table.name,
            "--target",
            target,
            "--out",
            "run",
            "--set",
            "training.steps=2",
            "--device",
            "cpu",
            "--quiet",
        ],
        ["predict", "run", table.name, "--quiet"],
        ["predict", "run", table.name, "--quiet", "--json"],
    ]
    done = subprocess.run([sys.executable, "-c", PROGRAM, json.dumps(lines)], capture_output=True, cwd=tmp_path,
                          env=os.environ | {"OMP_NUM_THREADS": "1"}, check=True)  # fmt: skip
    said = done.stdout.decode("utf-8")
    assert "codes [0, 0, 0]" in said and TITLE in said and RED in said
    rows = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    assert len(rows) == 60 and rows[0][f"colour{RED}"] == f"0{TITLE}{WIPE}"


def test_what_a_model_writes_does_not_act(tmp_path: Path) -> None:
    text = (f"{TITLE}{WIPE}{TURN}word and more\n" * 9 + "\tone\n") * 40
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    train = ["train", "text.txt", "--out", "run", "--set", "training.steps=2", "--set", "data.tokenizer.kind=char",
             "--task", "lm", "--device", "cpu", "--progress", "lines"]  # fmt: skip
    asked = ["generate", "run", f"word{TITLE}", "--max-new-tokens", "60"]
    sampled = ["--temperature", "5", "--seed", "1"]
    seen = on_terminal(tmp_path, train, [*asked, *sampled], [*asked, "--num-beams", "2"])
    assert "codes [0, 0, 0]" in seen, seen
    written = seen[seen.index("report") :]
    assert not [text for text in ("\x1b", "\x07", TURN) if text in written]
    assert "\\x1b" in written

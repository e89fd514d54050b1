"""What is written into a pipe comes as it is made, and a reader that has gone (`| head`) ends a command quietly."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.serving.folders import Folders

LONG = 4000  # tokens


def started(*words: str | Path, said: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "anyformer.cli", *map(str, words)]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    with said.open("wb") as error:
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=error, env=env)


@pytest.mark.parametrize("verb", ["generate", "chat"])
def test_a_text_comes_as_it_is_written(folders: Folders, tmp_path: Path, verb: str) -> None:
    said = tmp_path / "said"
    words = ["--max-new-tokens", str(LONG), "--temperature", "1", "--seed", "1"]
    with started(verb, folders["patient"], *words, said=said) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(b"The film was\n")
        process.stdin.close()
        first = os.read(process.stdout.fileno(), 65_536)
        # Written at the end it would be here as a whole; so far it is a few words.
        assert 0 < len(first) < LONG / 4, len(first)
        process.stdout.close()
        assert process.wait(60) == 0
    assert "Traceback" not in said.read_text() and "Error" not in said.read_text(), said.read_text()
    assert "tokens" not in said.read_text()  # the line about its speed belongs to a text that was ended


def test_a_pipe_gets_the_same_bytes_as_the_library_gives(folders: Folders, tmp_path: Path) -> None:
    import anyformer

    said = tmp_path / "said"
    with started("generate", folders["writer"], "The film", "--max-new-tokens", "100", "--quiet", said=said) as process:
        written, _ = process.communicate(timeout=60)
    text = anyformer.load(folders["writer"]).generate("The film", max_new_tokens=100)
    assert written.decode() == text.rstrip("\n") + "\n"


@pytest.mark.parametrize("words", [["presets"], ["presets", "--json"], ["runs", "list", "."],
                                   ["plan", "gpt2-tiny"], ["predict", "RUN", "FILE"]], ids=" ".join)  # fmt: skip
def test_a_reader_that_has_gone_ends_a_command_quietly(folders: Folders, tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "rows.csv").write_text("text\n" + "a good film\n" * 50)
    named = {"RUN": str(folders["classifier"]) if "RUN" in words else "", "FILE": str(tmp_path / "rows.csv")}
    said = tmp_path / "said"
    with started(*(named.get(word, word) for word in words), said=said) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdout.close()
        process.stdin.close()
        code = process.wait(60)
    told = said.read_text()
    assert code in (0, 2) and "Traceback" not in told and "BrokenPipe" not in told, (code, told)
    assert code == 0 or "error: " in told

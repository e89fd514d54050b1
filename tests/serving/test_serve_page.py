"""docs/how-to/serve.md: its commands are run as they stand, its tables are those of the code."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyformer
from anyformer.data.files import data_urls
from anyformer.serving.limits import Limits
from anyformer.serving.predict_rows import predict_what
from anyformer.serving.request_schemas import PredictRequest, read
from docs.serve_limits import table
from tests.serving.folders import Folders
from tests.serving.server import Server

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "serve.md"
TEXT = PAGE.read_text(encoding="utf-8")
PREDICTED = ["classifier", "table", "tagger", "pictures"]  # the models that its rows are for, line by line
HERE = "http://127.0.0.1:8000"


def lines(kind: str) -> list[str]:
    blocks = re.findall(rf"```{kind}\n(.*?)```", TEXT, re.DOTALL)
    return [line for block in blocks for line in block.strip().splitlines() if line.startswith("curl")]


def curl(line: str, server: Server) -> str:
    """One line of the page as a shell would run it, with the port of this server."""
    words = shlex.split(line.replace(HERE, server.url))
    done = subprocess.run(["curl", "-sS", "--fail-with-body", *words[1:]], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, (line, done.stdout, done.stderr)
    return done.stdout


def test_every_command_of_the_page_is_answered(talker: Server) -> None:
    shown = lines("sh")
    assert len(shown) >= 12
    for line in shown:
        answer = curl(line, talker)
        if '"stream": true' in line:
            events = [part.removeprefix("data: ") for part in answer.strip().split("\n\n")]
            assert events[-1] == "[DONE]" and json.loads(events[-2])["usage"]["completion_tokens"] <= 16
        elif "/metrics" in line:
            assert "anyformer_generated_tokens_total" in answer and "anyformer_time_to_first_token_seconds" in answer
        else:
            found = json.loads(answer)
            if '"regex"' in line and "completions" in line:
                assert_obeys(found["choices"][0], line)
            if '"json_schema"' in line:
                text = found["choices"][0]["text"]
                assert found["choices"][0]["finish_reason"] == "length" or set(json.loads(text)) == {"x"}, text
            if "embeddings" in line:
                assert len(found["data"]) == 2 and found["usage"]["prompt_tokens"] > 2


def assert_obeys(choice: dict[str, Any], line: str) -> None:
    rule = re.findall(r'"regex": "(.*?)"', line)[-1]
    text = choice.get("text") or choice.get("message", {}).get("content")
    assert re.fullmatch(rule, text), (rule, text)


def test_every_row_of_the_page_is_answered(folders: Folders) -> None:
    shown = lines("sh predict")
    assert len(shown) == len(PREDICTED)
    for kind, line in zip(PREDICTED, shown, strict=True):
        asked = read(PredictRequest, shlex.split(line)[-1].encode())
        found = predict_what(anyformer.load(folders[kind]))(list(asked.rows))
        assert found and all(set(row) <= {"label", "probability", "scores", "tags"} for row in found), (kind, found)


def test_a_server_of_rows_answers_the_page_and_its_own_line(served: Callable[..., Server]) -> None:
    server = served("classifier")
    assert len(json.loads(curl(lines("sh predict")[0], server))["data"]) == 2
    assert server.get("/v1/models").json()["data"][0]["takes"].startswith("a text")
    (tried,) = re.findall(r"^\s+try\s+(curl .*)$", server.errors(), re.M)  # the line of the start-up block
    assert json.loads(curl(tried, server))["data"][0]["label"]


def test_the_python_of_the_page_runs(talker: Server) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    done = subprocess.run([sys.executable, "-c", code.replace(HERE, talker.url)], capture_output=True, text=True,
                          timeout=120)  # fmt: skip
    assert done.returncode == 0 and done.stdout, done.stderr


def test_routes_of_the_page_are_those_of_the_server() -> None:
    from anyformer.serving.app import PATHS

    shown = re.findall(r"^\| `(GET|POST) (/\S+)` \|", TEXT, re.M)
    assert sorted(shown) == sorted((path.method, path.path) for path in PATHS)
    called = {re.sub(r"\?.*", "", route) for route in re.findall(rf"{HERE}(/\S+)", TEXT)}
    assert {path.path for path in PATHS if "{" not in path.path} <= called


def test_bounds_of_the_page_are_those_of_the_requests() -> None:
    made = table()
    assert made in TEXT, f"run python -m docs.serve_limits and put this into the page:\n{made}"
    for fields in re.findall(r"-d \'(\{.*?\})\'$", "\n".join(lines("sh")), re.M):
        for name in json.loads(fields):
            assert f"| `{name}` |" in made


def test_limits_of_the_page_are_those_of_the_server() -> None:
    limits = Limits()
    named = "its body|its first line.*?|time until.*?|bytes that wait.*?|tokens that wait behind.*?|time without.*?"
    named += "|texts of.*?|tokens of a .*?"
    shown = dict(re.findall(rf"^\| ({named}) \| ([\d,]+)", TEXT, re.M))
    found = [float(number.replace(",", "")) for number in shown.values()]
    assert found == [limits.body, limits.headers, limits.receive, limits.output, limits.ahead, limits.stall,
                     limits.choices, limits.new_tokens]  # fmt: skip
    assert f"{data_urls.MOST_PIXELS:,} pixels" in TEXT and f"{data_urls.MOST_BYTES:,} bytes" in TEXT
    assert f"nothing moved for {limits.stuck:.0f} s" in TEXT


def test_options_of_the_page_exist() -> None:
    from typer.main import get_command

    from anyformer.cli import app

    known = {option for name in ("serve", "chat") for parameter in get_command(app).commands[name].params  # type: ignore[attr-defined]
             for option in parameter.opts}  # fmt: skip
    named = set(re.findall(r"`(--[a-z-]+)", TEXT))
    assert named and named <= known, named - known

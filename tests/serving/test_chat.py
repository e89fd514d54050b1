"""chat: piped, on a real terminal, and against a server; what stdout holds, what Ctrl-C does, what is forgotten."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import anyformer
from anyformer.commands.conversation import Conversation
from tests.cli.trying import Said, run
from tests.serving.folders import Folders
from tests.serving.server import Server

GREEDY = ["--max-new-tokens", "12", "--temperature", "0"]
RATES = re.compile(
    r"^prompt \d+ tokens, [\d.]+/s; \d+ new tokens, [\d.]+/s; first after [\d.]+ s; [\d.]+ s in all$", re.M
)


def piped(monkeypatch: pytest.MonkeyPatch, text: str, *words: str | Path) -> Said:
    """chat with lines on stdin, in this process."""
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    return run("chat", *words)


# ---------------------------------------------------------------- piped


def test_stdout_is_the_answers_and_nothing_else(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    said = piped(monkeypatch, "The good film\n", folders["writer"], *GREEDY)
    assert said.code == 0, said.err
    text = anyformer.load(folders["writer"]).generate("The good film", max_new_tokens=12)
    assert said.out == text + "\n"
    assert said.err.splitlines()[0] == "writer was not trained to chat: it continues your text"
    assert RATES.search(said.err), said.err
    quiet = piped(monkeypatch, "The good film\n", folders["writer"], *GREEDY, "--quiet")
    assert (quiet.out, quiet.err) == (said.out, "")


def test_a_model_without_a_template_goes_on_with_all_that_was_said(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = piped(monkeypatch, "The good\nand the sad\n", folders["writer"], *GREEDY, "--json")
    first, second = (json.loads(line)["text"] for line in said.out.splitlines())
    predictor = anyformer.load(folders["writer"])
    assert predictor.generate(f"The good{first}\nand the sad", max_new_tokens=12) == second


def test_a_model_with_a_template_is_asked_by_it(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    said = piped(monkeypatch, "/system Be brief\nHello\n", folders["talker"], *GREEDY, "--json")
    assert "not trained to chat" not in said.err
    predictor = anyformer.load(folders["talker"])
    prompt = "<s>system: Be brief</s>\n<s>user: Hello</s>\n<s>assistant: "
    ids = predictor.require_tokenizer().encode(prompt, special=False, safe=False)
    found = said.json
    assert found["prompt_tokens"] == len(ids) and found["new_tokens"] <= 12
    assert found["finish_reason"] in ("eos", "length") and found["time_to_first_token"] > 0
    import torch

    ids_out = predictor.run_generation(
        torch.tensor([ids]), {"max_new_tokens": 12, "eos_token_id": predictor.require_tokenizer().eos}
    )
    assert found["text"].strip() == predictor.texts(ids_out)[0].strip()


def test_an_encoder_decoder_answers_each_line_by_itself(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    said = piped(monkeypatch, "one two\nthree\n", folders["translator"], *GREEDY, "--quiet")
    assert said.code == 0 and len(said.out.splitlines()) >= 2, said.err


def test_commands(folders: Folders, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    lines = ["/help", "/set", "/set temperature 0.7", "/set seed=3", "/set max_new_tokens 5", "The good", "/stats",
             "/probs", f"/save {file}", "/clear", "The sad", f"/load {file}", "//not a command", "/quit",
             "never said"]  # fmt: skip
    said = piped(monkeypatch, "\n".join(lines) + "\n", folders["writer"], "--json")
    assert said.code == 0, said.err
    answers = [json.loads(line) for line in said.out.splitlines()]
    assert len(answers) == 3 and all(answer["new_tokens"] == 5 for answer in answers)
    kept = json.loads(file.read_text())
    assert kept["messages"] == [{"role": "user", "content": "The good"},
                                {"role": "assistant", "content": answers[0]["text"]}]  # fmt: skip
    assert kept["settings"] == {"temperature": 0.7, "seed": 3, "max_new_tokens": 5}
    assert answers[2]["prompt_tokens"] > answers[1]["prompt_tokens"]  # what was loaded is read again
    for told in ("/probs ", "temperature         -", "1 answers, 5 tokens", "2 turns written", "2 turns read"):
        assert told in said.err, (told, said.err)
    shares = re.findall(r"'[^']*' (0\.\d\d|1\.00)", said.err)
    assert shares and "\x1b" not in said.err


@pytest.mark.parametrize(("line", "told"), [
    ("/sett temperature 1", "did you mean 'set'"), ("/set temprature 1", "did you mean 'temperature'"),
    ("/set temperature hot", "temperature is 'hot'"), ("/set temperature nan", "temperature is 'nan'"),
    ("/set top_k 1.5", "top_k is '1.5'"), ("/save", "no file given"), ("/load nowhere.json", "nowhere.json"),
    ("good " * 400, "do not fit a context of 256"),
])  # fmt: skip
def test_a_mistake_is_one_line_and_ends_a_script(
    line: str, told: str, folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = piped(monkeypatch, line + "\n", folders["writer"], *GREEDY)
    assert said.code == 2 and len(said.errors) == 1 and told in said.errors[0] and len(said.errors[0]) <= 300, said.err
    assert not said.out


def test_a_saved_conversation_is_checked_and_nothing_else_overwritten(tmp_path: Path) -> None:
    talk = Conversation([{"role": "user", "content": "hä?\n"}], {"temperature": 0.5})
    path = tmp_path / "talk.json"
    talk.save(path)
    assert Conversation.load(path) == talk
    talk.save(path)  # another conversation may be overwritten
    for bad in ("[]", "{}", '{"messages": [{"role": "tool", "content": "x"}]}', '{"messages": [{"role": "user"}]}',
                '{"messages": [], "settings": {"temperature": 99}}', "no json"):  # fmt: skip
        other = tmp_path / "other.json"
        other.write_text(bad)
        with pytest.raises(anyformer.UserError):
            Conversation.load(other)
        with pytest.raises(anyformer.UserError, match="holds no conversation"):
            talk.save(other)
        assert other.read_text() == bad


def test_the_oldest_turns_are_left_out_when_the_context_is_full(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = "".join(f"The good film was bad, said the plot, number {at}.\n" for at in range(14))
    said = piped(monkeypatch, lines, folders["talker"], "--max-new-tokens", "8", "--temperature", "0", "--json")
    assert said.code == 0, said.err
    answers = [json.loads(line) for line in said.out.splitlines()]
    assert len(answers) == 14 and all(answer["prompt_tokens"] + 8 <= 256 for answer in answers)
    told = said.err.count("the oldest turns are left out")
    assert 1 <= told < 14
    short = piped(monkeypatch, "Hello\n", folders["talker"], *GREEDY)  # control
    assert "left out" not in short.err


def test_chat_takes_a_folder_or_a_url(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    for words in ([], [folders["writer"], "--url", "http://127.0.0.1:1"]):
        said = piped(monkeypatch, "x\n", *words)
        assert said.code == 2 and "a folder or --url" in said.errors[0]
    said = piped(monkeypatch, "x\n", folders["classifier"])
    assert said.code == 2 and "anyformer predict" in said.errors[0]


# ---------------------------------------------------------------- a terminal


class Terminal:
    """A real terminal with a command in it."""

    def __init__(self, *words: str | Path, verb: str = "chat", **around: str) -> None:
        self.main, inner = pty.openpty()
        env = {
            name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "COLORTERM")
        }
        env |= {"OMP_NUM_THREADS": "1", "TERM": "xterm-256color", "PYTHONUNBUFFERED": "1"} | around
        command = [sys.executable, "-m", "anyformer.cli", verb, *map(str, words)]
        self.process = subprocess.Popen(
            command, stdin=inner, stdout=inner, stderr=inner, env=env, start_new_session=True, preexec_fn=take_terminal
        )
        os.close(inner)
        self.text, self.seen = "", 0

    def until(self, wanted: str, seconds: float = 30.0) -> str:
        """What comes next, up to and with some text."""
        end = time.monotonic() + seconds
        while (at := self.text.find(wanted, self.seen)) < 0:
            ready, _, _ = select.select([self.main], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"no {wanted!r} in {self.text[self.seen :]!r}"
            try:
                part = os.read(self.main, 65_536)
            except OSError:
                part = b""
            assert part, f"ended without {wanted!r}: {self.text[self.seen :]!r}"
            self.text += part.decode("utf-8", "replace")
        start, self.seen = self.seen, at + len(wanted)
        return self.text[start : self.seen]

    def type(self, text: str) -> None:
        os.write(self.main, text.encode())

    def interrupt(self) -> None:
        """Ctrl-C at a prompt, as late as a hand would be: between its prompt and its wait, readline sees none."""
        time.sleep(1.0)
        self.type("\x03")

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)
        os.close(self.main)


def take_terminal() -> None:
    """The terminal on stdin becomes the one whose Ctrl-C is meant, and is obeyed though a shell's job ignores it."""
    import fcntl
    import termios

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def test_on_a_terminal_answers_stream_and_ctrl_c_stops_them(folders: Folders) -> None:
    with Terminal(folders["patient"], "--temperature", "1", "--seed", "1") as talk:
        talk.until("> ")
        assert "it continues your text" in talk.text
        talk.type("/set max_new_tokens 3500\r")
        talk.until("> ")
        talk.type("The good film\r")
        talk.until("The good film\r\n")  # as it was typed
        talk.until("e")  # it writes
        talk.type("\x03")
        stopped = talk.until("; stopped")
        assert "3500 new tokens" not in stopped
        talk.until("> ")
        talk.type("/set max_new_tokens 6\r")
        talk.until("> ")
        talk.type("The sad\r")
        talk.until("6 new tokens")  # the row is free again
        talk.until("> ")
        talk.type("/probs\r")
        assert "48;" in talk.until("> ")  # on coloured ground
        talk.type("/nothing\r")
        talk.until("error: chat: unknown command /nothing")
        talk.until("> ")
        talk.interrupt()
        talk.until("Ctrl-C again ends")
        talk.until("> ")
        talk.interrupt()
        assert talk.process.wait(20) == 130


@pytest.mark.parametrize("setting", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_colour_is_left_out_where_it_is_not_wanted(setting: dict[str, str], folders: Folders) -> None:
    with Terminal(folders["writer"], *GREEDY, **setting) as talk:
        talk.until("> ")
        talk.type("The good\r")
        talk.until("in all")
        talk.until("> ")
        talk.type("/probs\r")
        shown = talk.until("> ")
        assert re.search(r"'.*' (0\.\d\d|1\.00)", shown) and not re.search(r"\x1b\[[0-9;]*m", talk.text)
        talk.type("\x04")
        assert talk.process.wait(20) == 0


# ---------------------------------------------------------------- servers


@contextmanager
def strange_server(answer: Callable[[BaseHTTPRequestHandler, dict[str, Any]], None]) -> Iterator[str]:
    """Somebody else's server: it knows one model, and answers questions as it likes."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            sent(self, 200, json.dumps({"data": [{"id": "theirs"}]}).encode())

        def do_POST(self) -> None:
            answer(self, json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def log_message(self, *words: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def sent(handler: BaseHTTPRequestHandler, status: int, body: bytes, kind: str = "application/json") -> None:
    handler.send_response(status)
    handler.send_header("Content-Type", kind)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


def stream_of(*pieces: str) -> bytes:
    chunks = [{"choices": [{"delta": {"content": piece}}]} for piece in pieces]
    chunks.append({"choices": [{"delta": {}, "finish_reason": "stop"}]})
    return b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks) + b"data: [DONE]\n\n"


def test_servers_of_others_are_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that knows neither usage nor probabilities, and forgets long conversations with an error."""
    asked: list[dict[str, Any]] = []

    def answer(handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        asked.append(body)
        for unknown in ("stream_options", "logprobs"):
            if unknown in body:
                sent(handler, 400, json.dumps({"error": {"message": f"unknown field {unknown}"}}).encode())
                return
        if len(body["messages"]) > 3:
            sent(handler, 400, json.dumps({"error": {"message": "long", "code": "context_length_exceeded"}}).encode())
            return
        sent(handler, 200, stream_of("Hä", "?\u001b[31m", " 是"), "text/event-stream")

    with strange_server(answer) as url:
        said = piped(monkeypatch, "one\ntwo\nthree\n/probs\n", "--url", f"{url}/v1", "--temperature", "0.5")
    assert said.code == 0, said.err
    assert said.out == "Hä?\u001b[31m 是\n" * 3  # a program gets what was sent
    assert asked[-1]["model"] == "theirs" and asked[-1]["temperature"] == 0.5
    assert [turn["content"] for turn in asked[-1]["messages"]][-1] == "three" and len(asked[-1]["messages"]) == 3
    assert said.err.count("the oldest turns are left out") == 1 and "gives no probabilities" in said.err
    assert "not trained" not in said.err


BROKEN: dict[str, tuple[int, bytes, str]] = {
    "an error": (500, b'{"error": {"message": "engine on fire", "code": null}}', "500: engine on fire"),
    "a page": (404, b"<html>no</html>", "404: <html>no</html>"),
    "no JSON": (200, b"data: {oops\n\n", "not JSON"),
    "no end": (200, b'data: {"choices": []}\n\n', "broke off"),
    "an error on the way": (200, b'data: {"error": {"message": "gone"}}\n\n', "the server says: gone"),
    "an endless line": (200, b"data: " + b"x" * (2**20 + 10), "too long"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_server_is_one_line(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    status, body, told = BROKEN[kind]
    with strange_server(lambda handler, asked: sent(handler, status, body, "text/event-stream")) as url:
        said = piped(monkeypatch, "one\n", "--url", url)
    assert said.code == 2 and len(said.errors) == 1 and told in said.errors[0], said.err
    assert len(said.errors[0]) <= 300


def test_no_server_and_no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    for url, told in (
        ("http://127.0.0.1:9", "no server answers"),
        ("ftp://x", "not an address"),
        ("http://x:y", "port"),
    ):
        said = piped(monkeypatch, "one\n", "--url", url)
        assert said.code == 2 and told in said.errors[0], said.err


def test_chat_with_a_real_server(
    talker: Server, writer: Server, folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["The good film\n/probs\nWhat?\n", "--temperature", "0", "--max-new-tokens", "10"]
    for server, kind in ((talker, "talker"), (writer, "writer")):
        near = piped(monkeypatch, words[0], folders[kind], *words[1:])
        far = piped(monkeypatch, words[0], "--url", server.url, *words[1:])
        assert (far.code, near.code) == (0, 0), far.err
        assert far.out == near.out  # the same model says the same, here and there
        assert ("not trained to chat" in far.err) == (kind == "writer")
        assert RATES.search(far.err) and re.search(r"'[^']*' (0\.\d\d|1\.00)", far.err), far.err
    long = "The good film was bad, said the plot.\n" * 14
    said = piped(monkeypatch, long, "--url", talker.url, "--max-new-tokens", "8", "--temperature", "0")
    assert said.code == 0 and said.err.count("left out") >= 1, said.err


# ---------------------------------------------------------------- generate


def test_generate_streams_to_a_terminal_and_says_how_fast(folders: Folders) -> None:
    text = anyformer.load(folders["writer"]).generate("The good film", max_new_tokens=12)
    with Terminal(folders["writer"], "The good film", "--max-new-tokens", "12", verb="generate") as talk:
        shown = talk.until("in all").replace("\r\n", "\n")
        assert talk.process.wait(20) == 0
    assert shown.startswith(text + "\n"), (shown, text)
    assert "new tokens, " in shown and "; first after " in shown


def test_generate_piped_is_the_text_alone(folders: Folders) -> None:
    text = anyformer.load(folders["writer"]).generate("The good film", max_new_tokens=12)
    said = run("generate", folders["writer"], "The good film", "--max-new-tokens", "12")
    assert said.out == text + "\n" and RATES.search(said.err.replace("; opened", "\nopened")), said.err
    found = run("generate", folders["writer"], "The good film", "--max-new-tokens", "12", "--json").json
    assert found["texts"] == [text] and found["new_tokens"] == 12 and found["prompt_tokens"] > 1
    assert found["time_to_first_token"] <= found["seconds"] and found["decode_tokens_per_second"] > 0
    words = ["--max-new-tokens", "4", "--num-beams", "2", "--json"]
    beams = run("generate", folders["writer"], "The good film", *words).json
    assert beams["time_to_first_token"] is None and beams["prompt_tokens_per_second"] is None

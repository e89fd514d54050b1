"""A conversation as the text a model reads: by the folder's own template, or in a plain form of ours."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from anyformer.data.tokenizer import Tokenizer, template_of
from anyformer.errors import UserError
from anyformer.files import inside, read_json

LONGEST = 262_144  # characters of a template
MOST = 1_000_000  # characters it may write
SECONDS = 1.0
MEMORY = 512 * 1024 * 1024
START = 20.0  # seconds until the process is there
WORKER = Path(__file__).with_name("template_worker.py")
BROKEN = "the chat template could not be rendered"

Turn = Mapping[str, str]  # role and content


class ChatForm(Protocol):
    """How a conversation becomes text."""

    name: str  # "folder" or "plain"
    stops: tuple[str, ...]  # texts that end an answer

    def text(self, messages: Sequence[Turn]) -> str:
        """The text up to where the assistant's answer begins."""

    def ids(self, tokenizer: Tokenizer, text: str) -> list[int]:
        """Its tokens."""

    def close(self) -> None:
        """No more conversations."""


class PlainForm:
    """`user: ...` line by line, for models that know no other; an answer ends where the user would speak again.

    >>> PlainForm().text([{"role": "user", "content": "Hello"}])
    'user: Hello\\nassistant:'
    """

    name = "plain"
    stops: tuple[str, ...] = ("\nuser:", "\nsystem:")

    def text(self, messages: Sequence[Turn]) -> str:
        """One line a turn, then the assistant's name."""
        said = [f"{'system' if turn['role'] == 'developer' else turn['role']}: {turn['content']}" for turn in messages]
        return "\n".join([*said, "assistant:"])

    def ids(self, tokenizer: Tokenizer, text: str) -> list[int]:
        """Tokens as of any text."""
        return tokenizer.encode(text)

    def close(self) -> None:
        """Nothing to do."""


class FolderForm:
    """The template of a model's folder, rendered by a process of its own that is ended when it takes too long."""

    name = "folder"
    stops: tuple[str, ...] = ()

    def __init__(
        self, template: str, special: Mapping[str, Any], *, seconds: float = SECONDS, most: int = MOST
    ) -> None:
        if len(template) > LONGEST:
            raise UserError(f"the chat template has {len(template):,} characters", fix=f"use at most {LONGEST:,}")
        self.template, self.special, self.seconds, self.most = template, dict(special), seconds, most
        self.lock = threading.Lock()
        self.process: subprocess.Popen[bytes] | None = None
        with self.lock:
            self.start()

    def text(self, messages: Sequence[Turn], *, add_generation_prompt: bool = True) -> str:
        """The rendered conversation; `UserError` in the template's own words where it refuses."""
        # Templates know the older of the two names.
        turns = [dict(turn) | ({"role": "system"} if turn["role"] == "developer" else {}) for turn in messages]
        given = self.special | {"messages": turns, "tools": None, "documents": None,
                                "add_generation_prompt": add_generation_prompt}  # fmt: skip
        with self.lock:
            if self.process is None or self.process.poll() is not None:
                self.end()
                self.start()
            return self.ask(given, self.seconds)["text"]

    def ids(self, tokenizer: Tokenizer, text: str) -> list[int]:
        """The template has written out its special tokens; none are added."""
        return tokenizer.encode(text, special=False, safe=False)

    def start(self) -> None:
        """A fresh process that has compiled the template."""
        self.process = subprocess.Popen(
            [sys.executable, "-I", str(WORKER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, env={}, cwd=os.sep,
        )  # fmt: skip
        try:
            self.ask(None, START)
            self.ask({"template": self.template, "most": self.most, "memory": MEMORY}, max(self.seconds, SECONDS))
        except UserError:
            self.end()
            raise

    def ask(self, given: Any, seconds: float) -> dict[str, str]:
        """One line there, unless there is nothing to say, and one back; a process that is late with it is ended."""
        process = self.process
        assert process is not None and process.stdin is not None and process.stdout is not None
        try:
            line = b"" if given is None else json.dumps(given).encode() + b"\n"
            told = exchange(process, line, seconds, self.most * 16)
        except TimeoutError:
            self.end()
            raise UserError(
                f"the chat template took longer than {seconds:.0f} s", fix="shorten the conversation"
            ) from None
        except (OSError, ValueError):
            self.end()
            raise UserError(BROKEN, fix="use /v1/completions") from None
        if "error" in told:
            raise UserError(" ".join(told["error"].split())[:200], where="chat template")
        return told

    def end(self) -> None:
        """End the process; the next conversation starts another."""
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()

    def close(self) -> None:
        """End the process for good."""
        with self.lock:
            self.end()


def exchange(process: subprocess.Popen[bytes], line: bytes, seconds: float, most: int) -> dict[str, str]:
    """Write a line and read one, both within a time."""
    assert process.stdin is not None and process.stdout is not None
    out, back = process.stdin.fileno(), process.stdout.fileno()
    os.set_blocking(out, False)
    os.set_blocking(back, False)
    until, left, found = time.monotonic() + seconds, memoryview(line), b""
    with selectors.DefaultSelector() as ready:
        if line:
            ready.register(out, selectors.EVENT_WRITE)
        ready.register(back, selectors.EVENT_READ)
        while not found.endswith(b"\n"):
            events = ready.select(until - time.monotonic())
            if not events or time.monotonic() > until:
                raise TimeoutError
            for key, _ in events:
                if key.fd == out:
                    left = left[os.write(out, left[:65_536]) :]
                    if not left:
                        ready.unregister(out)
                else:
                    part = os.read(back, 1 << 20)
                    if not part or len(found) > most:
                        raise OSError(BROKEN)
                    found += part
    told = json.loads(found)
    return {str(name): str(value) for name, value in told.items()}


def chat_form(folder: Path, tokenizer: Tokenizer | None) -> ChatForm:
    """The form of a folder: its own template where it has one, else ours."""
    template = folder_template(folder, tokenizer)
    if template is None or tokenizer is None:
        return PlainForm()
    special: dict[str, Any] = {f"{role}_token": token for role, token in tokenizer.roles.items()}
    try:
        return FolderForm(template, special)
    except UserError as error:
        raise UserError(error.what, where="chat template", fix="mend or remove it") from None


def folder_template(folder: Path, tokenizer: Tokenizer | None) -> str | None:
    """A file of its own goes before tokenizer_config.json."""
    alone = inside(folder, "chat_template.jinja")
    if alone.is_file():
        if alone.stat().st_size > 4 * LONGEST:
            raise UserError(
                "the chat template is too long", where=alone.name, fix=f"use at most {LONGEST:,} characters"
            )
        try:
            return alone.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise UserError("the chat template is no UTF-8", where=alone.name, fix="write it anew") from None
    older = inside(folder, "chat_template.json")
    if older.is_file():
        return template_of(read_json(older).get("chat_template"))
    return None if tokenizer is None else tokenizer.chat_template

"""Chat templates: the folder's own, or a plain built-in one."""

from __future__ import annotations

import json
import os
import re
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from anyformer.data.tokenizers.tokenizer import Tokenizer, template_of
from anyformer.errors import UserError
from anyformer.extras import require
from anyformer.safe_files import inside, read_json

LONGEST = 262_144  # characters of a template
MOST = 1_000_000  # characters it may render
SECONDS = 1.0
MEMORY = 512 * 1024 * 1024
START = 20.0  # seconds for the process to start
WORKER = Path(__file__).with_name("template_worker.py")
BROKEN = "the chat template could not be rendered"

Turn = Mapping[str, str]  # role and content
Check = Callable[[str], None]


def anything(text: str) -> None:
    """Accept any text."""


class ChatTemplate(Protocol):
    """Renders a conversation as a prompt."""

    name: str  # "folder" or "plain"
    stops: tuple[str, ...]  # stop strings

    def text(self, messages: Sequence[Turn]) -> str:
        """The prompt, up to the start of the assistant's reply."""

    def ids(self, tokenizer: Tokenizer, messages: Sequence[Turn], check: Check = anything) -> list[int]:
        """The prompt's tokens; `check` gets the text before tokenization.

        Message content never becomes special tokens: only the template can end a turn.
        """

    def close(self) -> None:
        """Release resources."""


class PlainTemplate:
    """`user: ...` line by line, for models without a template; a reply ends before the next user line.

    >>> PlainTemplate().text([{"role": "user", "content": "Hello"}])
    'user: Hello\\nassistant:'
    """

    name = "plain"
    stops: tuple[str, ...] = ("\nuser:", "\nsystem:")

    def text(self, messages: Sequence[Turn]) -> str:
        """One line per turn, then the assistant's name."""
        said = [f"{'system' if turn['role'] == 'developer' else turn['role']}: {turn['content']}" for turn in messages]
        return "\n".join([*said, "assistant:"])

    def ids(self, tokenizer: Tokenizer, messages: Sequence[Turn], check: Check = anything) -> list[int]:
        """Tokens of the text; spelled-out special tokens are treated as plain text."""
        text = self.text(messages)
        check(text)
        return tokenizer.encode(text, safe=True)

    def close(self) -> None:
        """Nothing to do."""


class FolderTemplate:
    """The template of a model's folder, rendered in a subprocess that is killed on timeout."""

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
        """The rendered conversation; if the template raises an exception, a `UserError` with its message."""
        # Templates only know the older role name.
        turns = [dict(turn) | ({"role": "system"} if turn["role"] == "developer" else {}) for turn in messages]
        given = self.special | {"messages": turns, "tools": None, "documents": None,
                                "add_generation_prompt": add_generation_prompt}  # fmt: skip
        with self.lock:
            if self.process is None or self.process.poll() is not None:
                self.end()
                self.start()
            return self.ask(given, self.seconds)["text"]

    def ids(self, tokenizer: Tokenizer, messages: Sequence[Turn], check: Check = anything) -> list[int]:
        """Tokens of the rendered conversation, as in transformers, unless a message contains forged special tokens.

        The conversation is rendered a second time with placeholders for all message characters that could begin or end
        a special token, so that only the template's own special tokens are left. If the first rendering has others,
        they
        are forged: then the second one is used, with its special tokens by id and everything between as plain text.
        """
        text = self.text(messages)
        check(text)
        ids = tokenizer.encode(text, special=False, safe=False)
        special = {token.content: number for number, token in tokenizer.engine.added().items() if token.special}
        hidden = placeholder_tokens(special, "".join(turn["content"] for turn in messages), self.template)
        if not hidden:
            return ids
        masked = self.text([dict(turn) | {"content": turn["content"].translate(hidden)} for turn in messages])
        numbers = set(special.values())
        own = [one for one in tokenizer.encode(masked, special=False, safe=False) if one in numbers]
        if [one for one in ids if one in numbers] == own:
            return ids
        shown = {ord(other): chr(one) for one, other in hidden.items()}
        found: list[int] = []
        for part in re.split(f"({'|'.join(map(re.escape, sorted(special, key=len, reverse=True)))})", masked):
            if part in special:
                found.append(special[part])
            elif part:
                found += tokenizer.encode(part.translate(shown), special=False, safe=True)
        return found

    def start(self) -> None:
        """Start a process and have it compile the template."""
        require("jinja2", "a chat template needs")
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
        """Send one line, if any, and read one back; on timeout the process is killed."""
        process = self.process
        assert process is not None and process.stdin is not None and process.stdout is not None
        try:
            line = b"" if given is None else json.dumps(given).encode() + b"\n"
            reply = exchange(process, line, seconds, self.most * 16)
        except TimeoutError:
            self.end()
            raise UserError(
                f"the chat template took longer than {seconds:.0f} s", fix="shorten the conversation"
            ) from None
        except (OSError, ValueError):
            self.end()
            raise UserError(BROKEN, fix="use /v1/completions") from None
        if "error" in reply:
            raise UserError(" ".join(reply["error"].split())[:200], where="chat template")
        return reply

    def end(self) -> None:
        """Kill the process; the next conversation starts a new one."""
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()

    def close(self) -> None:
        """Kill the process."""
        with self.lock:
            self.end()


def placeholder_tokens(special: Iterable[str], written: str, template: str) -> dict[int, str]:
    """Private-use characters for all characters with which a special token could begin or end.

    >>> placeholder_tokens(["</s>"], "a < b", "")
    {60: '\\U000f0000'}
    """
    edges = {letter for token in special if token for edge in (token[0], token[-1])
             for letter in (edge, *edge.lower(), *edge.upper())}  # fmt: skip
    taken = set(written) | set(template)
    free = (letter for letter in map(chr, range(0xF0000, 0xFFFFE)) if letter not in taken)
    return {ord(letter): next(free) for letter in sorted(edges & set(written))}


def exchange(process: subprocess.Popen[bytes], line: bytes, seconds: float, most: int) -> dict[str, str]:
    """Write a line and read one, within the timeout."""
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
    reply = json.loads(found)
    return {str(name): str(value) for name, value in reply.items()}


def open_chat_template(folder: Path, tokenizer: Tokenizer | None) -> ChatTemplate:
    """The chat template of a folder, or the plain one if it has none."""
    template = folder_template(folder, tokenizer)
    if template is None or tokenizer is None:
        return PlainTemplate()
    special: dict[str, Any] = {f"{role}_token": token for role, token in tokenizer.roles.items()}
    try:
        return FolderTemplate(template, special)
    except UserError as error:
        raise UserError(error.what, where="chat template", fix="fix or remove it") from None


def folder_template(folder: Path, tokenizer: Tokenizer | None) -> str | None:
    """The folder's template: chat_template.jinja takes precedence over tokenizer_config.json."""
    alone = inside(folder, "chat_template.jinja")
    if alone.is_file():
        if alone.stat().st_size > 4 * LONGEST:
            raise UserError(
                "the chat template is too long", where=alone.name, fix=f"use at most {LONGEST:,} characters"
            )
        try:
            return alone.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise UserError("the chat template is not UTF-8", where=alone.name, fix="write it anew") from None
    older = inside(folder, "chat_template.json")
    if older.is_file():
        return template_of(read_json(older).get("chat_template"))
    return None if tokenizer is None else tokenizer.chat_template

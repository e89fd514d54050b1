"""A conversation: its messages, generation settings, and file."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anyformer.errors import UserError, did_you_mean
from anyformer.safe_files import read_json, replace_file

Turn = dict[str, str]  # role and content
ROLES = ("system", "user", "assistant")
MOST_TURNS = 10_000


SETTINGS: dict[str, tuple[Callable[[str], int | float], float, float, str]] = {
    "temperature": (float, 0.0, 2.0, "0 is greedy, 1 the model's own"),
    "top_p": (float, 0.0, 1.0, "sample among the likeliest that reach p"),
    "top_k": (int, 0, 1_000_000, "sample among the k likeliest"),
    "min_p": (float, 0.0, 1.0, "leave out what is less likely than this share of the likeliest"),
    "repetition_penalty": (float, 0.01, 10.0, "above 1, fewer repetitions"),
    "max_new_tokens": (int, 1, 1_000_000, "at most this many tokens an answer"),
    "seed": (int, 0, 2**63 - 1, "the same seed gives the same text"),
}


@dataclass
class Conversation:
    """The messages, oldest first, and the generation settings."""

    turns: list[Turn] = field(default_factory=list)
    settings: dict[str, int | float] = field(default_factory=dict)

    def add(self, role: str, content: str) -> None:
        """Append a message."""
        self.turns.append({"role": role, "content": content})

    @property
    def system(self) -> str | None:
        """The system prompt."""
        return self.turns[0]["content"] if self.turns and self.turns[0]["role"] == "system" else None

    def set_system(self, text: str) -> None:
        """Replace or remove the system prompt."""
        rest = self.turns[1:] if self.system is not None else self.turns
        self.turns = [{"role": "system", "content": text}, *rest] if text else rest

    def clear(self) -> None:
        """Remove all messages except the system prompt."""
        self.turns = self.turns[:1] if self.system is not None else []

    def as_text(self) -> str:
        """The conversation as one text to continue, with a line break before each user message after an answer."""
        text = ""
        for turn in self.turns:
            text += ("\n" if text and turn["role"] != "assistant" else "") + turn["content"]
        return text

    def forget_oldest(self) -> bool:
        """Drop the oldest question and its answer; False if only the newest question is left."""
        first = 1 if self.system is not None else 0
        last = next((at for at in range(first + 1, len(self.turns)) if self.turns[at]["role"] == "user"), None)
        if last is None:
            return False
        del self.turns[first:last]
        return True

    def set(self, name: str, value: str) -> None:
        """Change a setting by name; `none` resets it."""
        if name not in SETTINGS:
            raise UserError(f"unknown setting {name!r}", where="/set", fix=did_you_mean(name, SETTINGS))
        if value == "none":
            self.settings.pop(name, None)
            return
        kind, least, most, _ = SETTINGS[name]
        try:
            found = kind(value)
        except ValueError:
            found = math.nan
        if not least <= found <= most:
            raise UserError(f"{name} is {value[:40]!r}", where="/set", fix=f"use {least:g} to {most:g}, or none")
        self.settings[name] = found

    # ------------------------------------------------------------ its file

    def save(self, path: Path) -> None:
        """Save as JSON; only another conversation is overwritten."""
        if path.exists():
            try:
                Conversation.load(path)
            except UserError:
                raise UserError("the file is there and holds no conversation", where=str(path), fix="give a new name"
                                ) from None  # fmt: skip
        text = json.dumps({"messages": self.turns, "settings": self.settings}, indent=1, ensure_ascii=False) + "\n"
        try:
            replace_file(path, text)
        except OSError as error:
            raise UserError(f"cannot be written: {error.strerror}", where=str(path), fix="give another name") from None

    @classmethod
    def load(cls, path: Path) -> Conversation:
        """Load and validate a conversation from a file."""
        found: Any = read_json(path)
        turns, settings = found.get("messages"), found.get("settings", {})
        fits = isinstance(turns, list) and len(turns) <= MOST_TURNS and isinstance(settings, dict) and all(
            isinstance(turn, dict) and set(turn) == {"role", "content"} and turn["role"] in ROLES
            and isinstance(turn["content"], str) for turn in turns)  # fmt: skip
        if not fits:
            raise UserError("holds no conversation", where=path.name, fix="give a file that /save wrote")
        made = cls([dict(turn) for turn in turns])
        for name, value in settings.items():
            made.set(str(name), str(value))
        return made

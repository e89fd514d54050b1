"""Generation speed: prefill and decode rates."""

from __future__ import annotations

import time
from typing import Any

INSTANT = 1e-9


class Rates:
    """A stopwatch that starts when created and is notified of tokens and the end."""

    def __init__(self, prompt: int = 0) -> None:
        self.prompt, self.new = prompt, 0  # tokens
        self.began = time.perf_counter()
        self.first: float | None = None  # seconds until the first token
        self.total = 0.0

    def token(self, count: int = 1) -> None:
        """Record further tokens."""
        now = time.perf_counter() - self.began
        self.first = now if self.first is None else self.first
        self.new, self.total = self.new + count, now

    def end(self) -> Rates:
        """Stop the clock."""
        self.total = time.perf_counter() - self.began
        return self

    @property
    def prompt_rate(self) -> float | None:
        """Prompt tokens per second, from the time to the first token."""
        return None if self.first is None else self.prompt / max(self.first, INSTANT)

    @property
    def decode_rate(self) -> float | None:
        """Tokens per second after the first; over all tokens if they came at once."""
        if self.new < 2:
            return None
        if self.first is None:
            return self.new / max(self.total, INSTANT)
        return (self.new - 1) / max(self.total - self.first, INSTANT)

    def facts(self) -> dict[str, Any]:
        """As JSON-compatible values."""
        return {
            "prompt_tokens": self.prompt, "new_tokens": self.new,
            "prompt_tokens_per_second": round_to(self.prompt_rate, 1),
            "decode_tokens_per_second": round_to(self.decode_rate, 1),
            "time_to_first_token": round_to(self.first, 4), "seconds": round(self.total, 3),
        }  # fmt: skip

    def line(self) -> str:
        """As a readable line.

        >>> rates = Rates(12)
        >>> rates.new, rates.first, rates.total = 21, 0.5, 2.5
        >>> rates.line()
        'prompt 12 tokens, 24.0/s; 21 new tokens, 10.0/s; first after 0.50 s; 2.50 s in all'
        """
        decode = "" if self.decode_rate is None else f", {self.decode_rate:.1f}/s"
        read = "" if self.prompt_rate is None else f", {self.prompt_rate:.1f}/s"
        prompt = f"prompt {self.prompt} tokens{read}; " if self.prompt else ""
        first = "" if self.first is None else f"first after {self.first:.2f} s; "
        return f"{prompt}{self.new} new tokens{decode}; {first}{self.total:.2f} s in all"


def round_to(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)

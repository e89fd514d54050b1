"""How fast a text was written: the numbers people compare."""

from __future__ import annotations

import time
from typing import Any

INSTANT = 1e-9


class Rates:
    """A stopwatch: started when it is made, told of the first token and of the end."""

    def __init__(self, prompt: int = 0) -> None:
        self.prompt, self.new = prompt, 0  # tokens
        self.began = time.perf_counter()
        self.first: float | None = None  # seconds until the first token
        self.total = 0.0

    def token(self, count: int = 1) -> None:
        """So many more tokens are there."""
        now = time.perf_counter() - self.began
        self.first = now if self.first is None else self.first
        self.new, self.total = self.new + count, now

    def end(self) -> Rates:
        """Nothing more comes."""
        self.total = time.perf_counter() - self.began
        return self

    @property
    def prompt_rate(self) -> float | None:
        """Tokens of the prompt a second, as far as the first new token tells."""
        return None if self.first is None else self.prompt / max(self.first, INSTANT)

    @property
    def decode_rate(self) -> float | None:
        """Tokens a second after the first; of all of them where they came together."""
        if self.new < 2:
            return None
        if self.first is None:
            return self.new / max(self.total, INSTANT)
        return (self.new - 1) / max(self.total - self.first, INSTANT)

    def facts(self) -> dict[str, Any]:
        """For a program."""
        return {
            "prompt_tokens": self.prompt, "new_tokens": self.new,
            "prompt_tokens_per_second": round_to(self.prompt_rate, 1),
            "decode_tokens_per_second": round_to(self.decode_rate, 1),
            "time_to_first_token": round_to(self.first, 4), "seconds": round(self.total, 3),
        }  # fmt: skip

    def line(self) -> str:
        """For a person.

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

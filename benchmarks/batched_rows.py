"""How many texts of a batch differ from the same text written alone: by dtype, plain and strict.

    python -m benchmarks.batched_rows [MODEL] [--rows 32] [--new 64] [--device cpu] [--dtype bfloat16]

MODEL is a folder or run with a decoder, or the name of a preset with random weights. Every prompt is continued
greedily, by itself and together with all others, in the cache that `anyformer serve` uses. A batch adds up in another
order than a single row; where two tokens are almost as likely, rounding decides, and the texts part from there on.
`--strict` of `serve` gives every row the same shapes in company as alone, so that nothing rounds differently.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NamedTuple

import torch

import anyformer
from anyformer.generation.cache.open_store import open_serving_store

DTYPES = ("float32", "bfloat16")


class Compared(NamedTuple):
    """How a batch compares with its rows alone."""

    rows: int
    differing: int
    tokens_alike: float  # share of new tokens before the first that differs

    def __str__(self) -> str:
        share = self.differing / self.rows
        return f"{self.differing} of {self.rows} rows differ ({share:.0%}); {self.tokens_alike:.1%} of the tokens alike"


def compare(model: Any, prompts: list[list[int]], new: int, *, strict: bool) -> Compared:
    """Every prompt continued alone and among all others."""
    limit = max(map(len, prompts)) + new
    together = continue_texts(model, prompts, new, len(prompts), limit, strict=strict)
    alone = [continue_texts(model, [prompt], new, len(prompts), limit, strict=strict)[0] for prompt in prompts]
    alike = [common(one, other) for one, other in zip(alone, together, strict=True)]
    return Compared(len(prompts), sum(count < new for count in alike), sum(alike) / (new * len(prompts)))


def continue_texts(
    model: Any, prompts: list[list[int]], new: int, capacity: int, limit: int, *, strict: bool
) -> list[list[int]]:
    """New tokens of every prompt, the likeliest at each step, decoded in one store of `capacity` rows."""
    store = open_serving_store(model, capacity=capacity, limit=limit, strict=strict)
    # A scope each: no prompt goes on from another's prefix, which the same prompt alone would not have.
    numbers = [store.add(prompt, scope=str(at)).number for at, prompt in enumerate(prompts)]
    logits = store.prefill(dict(zip(numbers, prompts, strict=True)))
    steps = [logits.argmax(-1)]
    for _ in range(new - 1):
        steps.append(store.step(numbers, steps[-1]).argmax(-1))
    return torch.stack(steps, 1).tolist()


def common(one: list[int], other: list[int]) -> int:
    """Tokens before the first that differs.

    >>> common([1, 2, 3], [1, 2, 4]), common([1], [1])
    (2, 1)
    """
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), len(one))


def open_model(name: str, dtype: torch.dtype, device: str) -> Any:
    """A folder's or run's network, or a preset's with random weights."""
    if Path(name).is_dir():
        model = anyformer.load(name, device=device).model
    else:
        model = anyformer.preset(name).build(seed=0, device=device)
    return model.to(dtype).eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="gpt2")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=DTYPES, help="one of them; without it all")
    asked = parser.parse_args()
    generator = torch.Generator().manual_seed(0)
    for dtype in DTYPES if asked.dtype is None else (asked.dtype,):
        model = open_model(asked.model, getattr(torch, dtype), asked.device)
        vocab = model.spec.embed.vocab
        prompts = [torch.randint(vocab, (3 + 2 * at,), generator=generator).tolist() for at in range(asked.rows)]
        for strict in (False, True):
            found = compare(model, prompts, asked.new, strict=strict)
            print(f"{asked.model} {asked.device} {dtype} {'strict' if strict else 'plain'}: {found}", flush=True)


if __name__ == "__main__":
    main()

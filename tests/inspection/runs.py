"""Short real trainings, for looking into while they go on or after they ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyformer
from anyformer import LM, Attention, Block, Model, Rope, Stack, Tokens

LINES = [f"{a} {b} {c} {a} {b} {c} {a} {b} {c}" for a in "abcd" for b in "efgh" for c in "klmn"]


def text_run(out: Path, *, steps: int = 30, **settings: Any) -> Path:
    """A language model on lines that repeat three letters, with a checkpoint every ten steps."""
    data = out.parent / "lines.txt"
    data.write_text("\n".join(LINES * 4) + "\n")
    block = Block(mixer=Attention(heads=2), relative=Rope())
    model = Model(embed=Tokens(vocab=64), stack=Stack(width=16, depth=2, causal=True, block=block), head=LM(tied=True))
    anyformer.train(
        data, task="lm", model=model, steps=steps, out=out, device="cpu", quiet=True, batch_size=4,
        settings={"training.save_every": 10, "training.eval_every": 10, "training.keep": 100, "training.threads": 1,
                  "training.workers": 0, "training.compile": False, "data.tokenizer.max_length": 16}
        | {name.replace("__", "."): value for name, value in settings.items()},
    )  # fmt: skip
    return out

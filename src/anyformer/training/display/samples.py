"""What a language model or translator writes while it learns, kept as text files in the run's folder."""

from __future__ import annotations

from typing import Any

import torch

from anyformer.data.datasets.windows import Windows
from anyformer.generation import Generation, generate

LENGTH = 120  # tokens written
PROMPT = 12  # tokens of the validation text it goes on from
MOST = 8  # samples of a run


def write_sample(session: Any, model: Any, *, last: bool) -> None:
    """Let the model go on from the beginning of the validation text, a few times in a run."""
    valid, tokenizer = session.data.valid, session.data.tokenizer
    if session.config.task != "lm" or not isinstance(valid, Windows) or tokenizer is None:
        return
    every = max(1, session.total // MOST)
    due = session.done % every < (session.config.training.eval_every or 1)
    if not (last or due):
        return
    prompt = torch.tensor([valid.ids[: min(PROMPT, len(valid.ids) - 1)].tolist()], device=session.device)
    room = LENGTH
    limit = session.config.model.embed.limit
    if limit is not None:
        room = min(room, limit - prompt.shape[1])
    if room < 1:
        return
    settings = Generation(max_new_tokens=room, do_sample=True, temperature=0.8, seed=session.config.training.seed)
    written = generate(model, prompt, settings=settings)
    text = tokenizer.decode([*prompt[0].tolist(), *next(iter(written.rows()))])
    session.folder.write(f"samples/step-{session.done:06}.txt", text + "\n")
    session.progress.sample(session.done, text)

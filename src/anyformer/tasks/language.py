"""Language model: the next token of running text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from anyformer.data.columns.text import embed_tokens
from anyformer.data.datasets.windows import Windows
from anyformer.data.examples import Examples
from anyformer.data.files.path_kinds import kind_of_path
from anyformer.data.gather import origin_of
from anyformer.data.prepared import Prepared
from anyformer.data.settings import Data
from anyformer.data.sizes import Sizes
from anyformer.embeds import Tokens
from anyformer.errors import UserError
from anyformer.evaluation import token_frequencies
from anyformer.evaluation.answers import Answers
from anyformer.evaluation.baseline_rows import RawRows
from anyformer.evaluation.metrics import language_metrics
from anyformer.evaluation.token_frequencies import guess_by_frequency
from anyformer.generation import Generation, generate
from anyformer.heads import LM
from anyformer.objectives import Causal, Objective
from anyformer.slots import Network
from anyformer.tasks.habits import FINE_TUNE, TrainingDefaults
from anyformer.tasks.network import is_own, require_model, size_for, unfit
from anyformer.tasks.running_text import RunningTextTask

if TYPE_CHECKING:
    from anyformer.tasks.evaluator import Evaluator

MOST_TEXT = 16 * 2**20  # bytes of training text that a compressor reads before the evaluated text
MOST_EVALUATED = 4 * 2**20
XZ_SPEED = 10**6  # characters of training text per second that any machine compresses twice
MOST_TOKENS = 4 * 10**6  # tokens decoded again for the compressor
SAMPLE, PROMPT = 120, 12  # tokens of a sample, and of its prompt from the validation text


class LanguageTask(RunningTextTask):
    """A decoder that continues a prompt."""

    name = "lm"
    other_names = ("causal",)
    title = "language model"
    verb = "writes text"
    objective = Causal
    writes_text = True

    # ------------------------------------------------------------ data

    def recognise(self, paths: Sequence[Path] | None, settings: Data) -> str:
        if paths is None:
            return ""
        origin = origin_of(paths, None)
        if origin == "fasta":
            alone = settings.target is None and all(kind_of_path(path) == "fasta" for path in paths)
            return "sequences without labels" if alone else ""
        return "running text" if origin == self.origin else ""

    # ------------------------------------------------------------ the model and its training

    def default_preset(self, sizes: Sizes, *, gpu: bool) -> str:
        return f"decoder-{size_for(gpu)}"

    def fit_network(self, spec: Network, name: str, sizes: Sizes) -> Network:
        made = require_model(spec, name, self, sizes)
        embed = made.embed
        if is_own(embed, sizes):
            fitted = embed.fit_data(sizes)
        elif made.stack.causal and isinstance(embed, Tokens):
            fitted = embed_tokens(embed, sizes)
        else:
            raise unfit(name, "does not read text from left to right, which a language model must", "decoder-mini")
        return made.replace(embed=fitted, head=made.head if isinstance(made.head, LM) else LM(tied=True))

    def adapt_network(self, spec: Network, name: str, sizes: Sizes) -> Network:
        made = self.fit_network(spec, name, sizes)
        return made.replace(embed=spec.embed, head=spec.head or made.head)  # type: ignore[attr-defined]

    def check_changes(self, changes: Mapping[str, Any]) -> None:
        if changes.get("stack.causal") is False:
            raise UserError("a language model reads from left to right", where="model.stack.causal", fix="leave it out")

    def habit(self, sizes: Sizes, *, start: bool) -> TrainingDefaults:
        if start:
            return replace(FINE_TUNE, layer_lr_decay=1.0)
        return TrainingDefaults(epochs=20, batch_size=8, lr=3e-3, weight_decay=0.1, gpu_batch_size=64, gpu_lr=1e-3)

    def generation_config(self, objective: Objective, data: Prepared, spec: Network) -> dict[str, Any] | None:
        return ends_of(data)

    def write_sample(self, model: nn.Module, data: Prepared, *, seed: int) -> str | None:
        return continue_text(model, data, seed=seed)

    def next_command(self, run: Path) -> str:
        return f'anyformer generate {run} "..."'

    # ------------------------------------------------------------ evaluation

    def answer(
        self, evaluator: Evaluator, model: nn.Module, examples: Examples, rows: np.ndarray, *, decode: bool
    ) -> Answers:
        """Summed negative log-likelihood over the windows; the very first token has no context and is not a target."""
        assert isinstance(examples, Windows)
        nats, tokens, losses = evaluator.sum_tokens(model, examples, rows)
        whole = len(rows) == len(examples)
        share = 1.0 if whole else tokens / max(1, examples.tokens - 1)
        return Answers(
            self.name, nats=nats, tokens=tokens, bytes=round(examples.bytes * share), examples=examples, losses=losses
        )

    def compute_metrics(self, answers: Answers) -> dict[str, float]:
        return language_metrics(answers)

    # ------------------------------------------------------------ baselines

    def trivial_baseline(
        self, truth: Any, answers: Answers, train: RawRows, test: RawRows
    ) -> tuple[str, dict[str, float]]:
        if train.tokens is None or test.tokens is None or not len(test.tokens):
            return token_frequencies.NAME, {}
        nats, _ = guess_by_frequency(train.tokens, test.tokens)
        said = Answers(self.name, nats=nats * answers.tokens, tokens=answers.tokens, bytes=answers.bytes)
        return token_frequencies.NAME, self.metrics(said)

    def strong_baseline(
        self, truth: Any, answers: Answers, train: RawRows, test: RawRows, *, seed: int = 0
    ) -> tuple[str, dict[str, float]]:
        """The size of the test text compressed by xz after the training text: a compressor is a language model."""
        import lzma

        if train.texts is None or test.texts is None:
            return "no text for a compressor", {}
        before, after = "\n".join(train.texts).encode(), "\n".join(test.texts).encode()
        if not after:
            return "no text for a compressor", {}
        cut = f" (the last {MOST_TEXT // 2**20} MiB of training text)" if len(before) > MOST_TEXT else ""
        before, after = before[-MOST_TEXT:], after[:MOST_EVALUATED]
        sizes = [len(lzma.compress(text, lzma.FORMAT_XZ, preset=9)) for text in (before, before + after)]
        bits_per_byte = 8 * (sizes[1] - sizes[0]) / len(after)
        name = f"xz after the training text{cut}"
        if not answers.tokens or not answers.bytes:
            return name, {"bits_per_byte": bits_per_byte}
        nats = bits_per_byte * answers.bytes * math.log(2)
        return name, self.metrics(Answers(self.name, nats=nats, tokens=answers.tokens, bytes=answers.bytes))

    def strong_in_time(
        self, truth: Any, answers: Answers, train: RawRows, test: RawRows, seconds: float | None
    ) -> tuple[str, dict[str, float]]:
        """With the whole training text, or as much of its end as the time allows."""
        if seconds is None or train.texts is None:
            return self.strong_baseline(truth, answers, train, test)
        text, most = "\n".join(train.texts), max(1, int(seconds * XZ_SPEED))
        if len(text) <= most:
            return self.strong_baseline(truth, answers, train, test)
        name, scores = self.strong_baseline(truth, answers, replace(train, texts=[text[-most:]]), test)
        return f"{name} (its last {most:,} characters)", scores


def ends_of(data: Prepared) -> dict[str, Any] | None:
    """The eos and padding tokens for `generate`."""
    if data.tokenizer is None:
        return None
    known = {"eos_token_id": data.tokenizer.eos, "pad_token_id": data.tokenizer.pad}
    return {name: value for name, value in known.items() if value is not None}


def continue_text(model: nn.Module, data: Prepared, *, seed: int) -> str | None:
    """The model's continuation of the beginning of the validation text."""
    valid, tokenizer = data.valid, data.tokenizer
    if not isinstance(valid, Windows) or tokenizer is None:
        return None
    device = next(model.parameters()).device
    prompt = torch.tensor([valid.ids[: min(PROMPT, len(valid.ids) - 1)].tolist()], device=device)
    network: Any = model
    limit = network.spec.embed.limit
    room = SAMPLE if limit is None else min(SAMPLE, int(limit) - prompt.shape[1])
    if room < 1:
        return None
    settings = Generation(max_new_tokens=room, do_sample=True, temperature=0.8, seed=seed)
    written = generate(model, prompt, settings=settings)
    return tokenizer.decode([*prompt[0].tolist(), *next(iter(written.rows()))])

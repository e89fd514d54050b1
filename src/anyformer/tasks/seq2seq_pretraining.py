"""Pretraining of encoder-decoders on running text; each task has a file beside this one and its own objective."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from anyformer.core.model import Seq2Seq
from anyformer.data.datasets.blocks import SENTINEL, Blocks, SourceBlocks
from anyformer.data.datasets.corpus import TaskTokens
from anyformer.data.datasets.windows import Windows
from anyformer.data.prepared import Prepared
from anyformer.data.sizes import Sizes
from anyformer.generation import Generation, generate
from anyformer.generation.prompts import decoder_of, max_positions
from anyformer.objectives import Objective
from anyformer.objectives.draw import EVALUATION
from anyformer.slots import Network
from anyformer.tasks.network import adapt_encoder_decoder, fit_encoder_decoder, size_for
from anyformer.tasks.pretraining import PretrainingTask

SENTINELS = TaskTokens(extra=tuple(SENTINEL.format(number) for number in range(100)))  # as many as T5 has


class Seq2SeqPretraining(PretrainingTask):
    """An encoder reads a corrupted text, a decoder generates the lost part or the whole text."""

    rows: ClassVar[type[Windows]] = SourceBlocks
    writes_text = True

    def default_preset(self, sizes: Sizes, *, gpu: bool) -> str:
        return f"translator-{size_for(gpu)}"

    def fit_network(self, spec: Network, name: str, sizes: Sizes) -> Network:
        return fit_encoder_decoder(spec, name, sizes, "translator-mini or t5-small")

    def adapt_network(self, spec: Network, name: str, sizes: Sizes) -> Network:
        return adapt_encoder_decoder(self.fit_network(spec, name, sizes), spec, sizes)

    def generation_config(self, objective: Objective, data: Prepared, spec: Network) -> dict[str, Any] | None:
        """Greedy from the start token to the eos token, within the decoder's positions."""
        assert isinstance(spec, Seq2Seq) and data.tokenizer is not None
        longest, (places, _) = data.preprocess.length or 256, max_positions(decoder_of(spec))
        known = {
            "max_new_tokens": longest if places is None else min(longest, places - 1),
            "decoder_start_token_id": data.preprocess.start, "eos_token_id": data.tokenizer.eos,
            "pad_token_id": data.tokenizer.pad,
        }  # fmt: skip
        return {name: value for name, value in known.items() if value is not None}

    def write_sample(self, model: nn.Module, data: Prepared, *, seed: int) -> str | None:
        """The first validation block: the model's input, its output, and the target."""
        valid, tokenizer = data.valid, data.tokenizer
        if not isinstance(valid, Blocks) or tokenizer is None:
            return None
        network: Any = model
        objective = self.fit_objective(self.objective(), network.spec)
        batch = objective.corrupt(valid.batch([0]), EVALUATION, valid)
        config = self.generation_config(objective, data, network.spec)
        assert config is not None
        settings = replace(Generation(), **config)
        mask = batch.named.get("source_mask")
        device = next(model.parameters()).device
        source = batch.inputs[0].to(device)
        written = generate(model, source, None if mask is None else mask.to(device), settings=settings)
        real = batch.inputs[0][0] if mask is None else batch.inputs[0][0][mask[0]]
        lost = batch.targets[0][batch.targets[0] >= 0]
        lines = {"read": real.tolist(), "written": next(iter(written.rows())), "lost": lost.tolist()}
        return "\n".join(f"{name}: {tokenizer.decode(ids, skip_special=False)}" for name, ids in lines.items())

    def next_command(self, run: Path) -> str:
        return f'anyformer generate {run} "..."'

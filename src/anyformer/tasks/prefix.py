"""Prefix language modelling: the prefix is read with full attention, the rest is generated (prefix LM, UniLM, T5)."""

from __future__ import annotations

from typing import Any

from torch import nn

from anyformer.core.model import Model, Seq2Seq, Seq2SeqModule
from anyformer.core.stack import Stack
from anyformer.data.columns.text import embed_tokens
from anyformer.data.prepared import Prepared
from anyformer.data.sizes import Sizes
from anyformer.embeds import Tokens
from anyformer.heads import LM
from anyformer.objectives import Objective, Prefix
from anyformer.slots import Network
from anyformer.tasks.language import continue_text, ends_of
from anyformer.tasks.network import size_for, unfit
from anyformer.tasks.seq2seq_pretraining import Seq2SeqPretraining


class PrefixTask(Seq2SeqPretraining):
    """A decoder with full attention on its prompt, or an encoder-decoder whose encoder reads the prompt."""

    name = "prefix"
    title = "prefix language model"
    verb = "writes text"
    objective = Prefix

    def default_preset(self, sizes: Sizes, *, gpu: bool) -> str:
        return f"decoder-{size_for(gpu)}"

    def fit_network(self, spec: Network, name: str, sizes: Sizes) -> Network:
        if not isinstance(spec, Model):
            return super().fit_network(spec, name, sizes)
        stack, embed = spec.stack, spec.embed
        if not isinstance(stack, Stack) or not stack.causal or not isinstance(embed, Tokens):
            raise unfit(name, "writes no text", "decoder-mini or translator-mini")
        if not all(mixer.takes_prefix for mixer in stack.mixers):
            raise unfit(name, "cannot see a prompt whole", "decoder-mini or translator-mini")
        return spec.replace(
            embed=embed_tokens(embed, sizes), stack=stack.replace(causal="prefix_lm"),
            head=spec.head if isinstance(spec.head, LM) else LM(tied=True),
        )  # fmt: skip

    def adapt_network(self, spec: Network, name: str, sizes: Sizes) -> Network:
        if not isinstance(spec, Model):
            return super().adapt_network(spec, name, sizes)
        return self.fit_network(spec, name, sizes).replace(embed=spec.embed)

    def fit_objective(self, objective: Objective, spec: Network) -> Objective:
        return objective.replace(encoder=isinstance(spec, Seq2Seq))

    def generation_config(self, objective: Objective, data: Prepared, spec: Network) -> dict[str, Any] | None:
        if isinstance(spec, Seq2Seq):
            return super().generation_config(objective, data, spec)
        return ends_of(data)

    def write_sample(self, model: nn.Module, data: Prepared, *, seed: int) -> str | None:
        if isinstance(model, Seq2SeqModule):
            return super().write_sample(model, data, seed=seed)
        return continue_text(model, data, seed=seed)

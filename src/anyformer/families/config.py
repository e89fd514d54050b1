"""Reading another library's config.json so that nothing in it goes unnoticed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyformer.errors import UserError, did_you_mean
from anyformer.feeds.mlp import Act
from anyformer.positions.rope import Dynamic, Linear, Llama3, Scaling, Yarn, yarn_gain

# Fields every config may carry that do not change what the network computes.
IRRELEVANT = {
    "_name_or_path": "where it came from", "_commit_hash": "where it came from", "transformers_version": "who wrote it",
    "model_type": "names the family", "architectures": "names the head", "auto_map": "code of its own, which is never run",
    "torch_dtype": "type on disk; tensors say it themselves", "dtype": "type on disk; tensors say it themselves",
    "use_cache": "decoding decides", "output_attentions": "inspection", "output_hidden_states": "inspection",
    "return_dict": "shape of the answer in Python", "use_return_dict": "shape of the answer in Python",
    "torchscript": "another runtime", "gradient_checkpointing": "training", "chunk_size_feed_forward": "memory, not values",
    "pruned_heads": "checked apart", "use_bfloat16": "type", "tf_legacy_loss": "another framework", "attn_implementation": "kernel",
    "_attn_implementation": "kernel", "_attn_implementation_autoset": "kernel", "experts_implementation": "kernel",
    "_experts_implementation": "kernel", "name_or_path": "where it came from",
    "id2label": "labels, read apart", "label2id": "labels, read apart", "num_labels": "labels, read apart",
    "problem_type": "loss", "finetuning_task": "history", "task_specific_params": "decoding", "prefix": "decoding",
    "bos_token_id": "decoding", "eos_token_id": "decoding", "pad_token_id": "decoding", "sep_token_id": "decoding",
    "cls_token_id": "decoding", "mask_token_id": "decoding", "decoder_start_token_id": "decoding",
    "forced_bos_token_id": "decoding", "forced_eos_token_id": "decoding", "bad_words_ids": "decoding",
    "suppress_tokens": "decoding", "begin_suppress_tokens": "decoding", "max_length": "decoding", "min_length": "decoding",
    "do_sample": "decoding", "early_stopping": "decoding", "num_beams": "decoding", "num_beam_groups": "decoding",
    "diversity_penalty": "decoding", "temperature": "decoding", "top_k": "decoding", "top_p": "decoding",
    "typical_p": "decoding", "repetition_penalty": "decoding", "length_penalty": "decoding",
    "no_repeat_ngram_size": "decoding", "encoder_no_repeat_ngram_size": "decoding", "num_return_sequences": "decoding",
    "output_scores": "decoding", "return_dict_in_generate": "decoding", "remove_invalid_values": "decoding",
    "exponential_decay_length_penalty": "decoding", "tokenizer_class": "tokenizer", "initializer_range": "start of training",
    "initializer_factor": "start of training", "is_encoder_decoder": "said by the family", "quantization_config": "checked apart",
}  # fmt: skip

ACTS: dict[str, Act] = {
    "relu": "relu", "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu_fast": "gelu_tanh",
    "gelu_python": "gelu", "quick_gelu": "quick_gelu", "silu": "silu", "swish": "silu", "relu2": "relu2",
    "tanh": "tanh", "sigmoid": "sigmoid",
}  # fmt: skip
THEIR_ACTS: dict[Act, str] = {
    "relu": "relu", "gelu": "gelu", "gelu_tanh": "gelu_new", "quick_gelu": "quick_gelu", "silu": "silu", "relu2": "relu2",
    "tanh": "tanh", "sigmoid": "sigmoid",
}  # fmt: skip


class Config:
    """A config.json that remembers which of its fields were read."""

    def __init__(self, data: Mapping[str, Any], where: str = "config.json") -> None:
        self.data, self.where = dict(data), where
        self.read: set[str] = set()

    def get(self, name: str, default: Any) -> Any:
        """A field, or the default that the other library has for it; the type must be the default's."""
        self.read.add(name)
        value = self.data.get(name, default)
        if value is None and default is not None:
            value = default
        kinds = (int, float) if isinstance(default, float) else type(default)
        if default is not None and (not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool)):
            raise UserError(f"{name} is {value!r}", where=self.where, fix=f"expected a value like {default!r}")
        return float(value) if isinstance(default, float) else value

    def size(self, name: str, default: int | None, most: int = 2**31) -> Any:
        """A whole number of something, at least 1; None stays None where the default is None."""
        value = self.get(name, default)
        if value is None and default is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            raise UserError(f"{name} is {value!r}", where=self.where, fix="expected a whole number from 1")
        return value

    def only(self, name: str, value: Any, default: Any = ..., *, why: str = "is not implemented") -> None:
        """A field that must have one value."""
        self.read.add(name)
        found = self.data.get(name, value if default is ... else default)
        if found != value:
            raise UserError(f"{name} = {found!r} {why}", where=self.where, fix=f"only {value!r} is supported")

    def skip(self, reason: str, *names: str) -> None:
        """Fields that do not change what the network computes, and why."""
        assert reason
        self.read.update(names)

    def act(self, name: str, default: str) -> Act:
        """An activation by its name there."""
        value = self.get(name, default)
        if value not in ACTS:
            raise UserError(
                f"{name} = {value!r} is not implemented", where=self.where, fix=did_you_mean(str(value), ACTS)
            )
        return ACTS[value]

    def labels(self, default: int = 2) -> int:
        """How many labels a classification head has."""
        named = self.data.get("id2label")
        if isinstance(named, dict) and named:
            return len(named)
        return self.size("num_labels", default)

    def unread(self) -> list[str]:
        """Fields that nothing asked for and that are not known to be irrelevant."""
        return sorted(set(self.data) - self.read - set(IRRELEVANT))

    def rope(self, default_theta: float = 10000.0) -> tuple[float, float, Scaling | None]:
        """Theta, the share of channels that turn, and the scaling; both the older and the newer way of writing them."""
        self.skip(
            "read here", "rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor", "default_theta"
        )
        scaling = {**(self.data.get("rope_scaling") or {}), **(self.data.get("rope_parameters") or {})}
        theta = float(scaling.get("rope_theta", self.data.get("rope_theta", default_theta)))
        share = float(scaling.get("partial_rotary_factor", self.data.get("partial_rotary_factor") or 1.0))
        kind = scaling.get("rope_type", scaling.get("type", "default"))
        return theta, share, self.scaling(kind, scaling)

    def scaling(self, kind: str, given: Mapping[str, Any]) -> Scaling | None:
        trained = self.data.get("original_max_position_embeddings") or self.data.get("max_position_embeddings", 2048)
        original = int(given.get("original_max_position_embeddings") or trained)
        factor = float(given.get("factor") or 1.0)
        if kind in ("default", None):
            return None
        if kind == "linear":
            return Linear(factor=factor)
        if kind == "dynamic":
            return Dynamic(factor=factor, original=int(self.data.get("max_position_embeddings", 2048)))
        if kind == "llama3":
            return Llama3(
                factor=factor,
                low=float(given["low_freq_factor"]),
                high=float(given["high_freq_factor"]),
                original=original,
            )
        if kind == "yarn":
            attention, some, every = given.get("attention_factor"), given.get("mscale"), given.get("mscale_all_dim")
            if attention is None and some and every:
                attention = yarn_gain(factor, some) / yarn_gain(factor, every)
            return Yarn(factor=factor, original=original, fast=float(given.get("beta_fast") or 32), slow=float(given.get("beta_slow") or 1),
                        attention=None if attention is None else float(attention), truncate=bool(given.get("truncate", True)))  # fmt: skip
        raise UserError(
            f"rope scaling {kind!r} is not implemented", where=self.where, fix="linear, dynamic, yarn and llama3 are"
        )


def rope_parameters(theta: float, scaling: Scaling | None, share: float = 1.0) -> dict[str, Any]:
    """The same, written for the other library."""
    base: dict[str, Any] = {"rope_theta": theta} | ({} if share == 1.0 else {"partial_rotary_factor": share})
    if scaling is None:
        return base | {"rope_type": "default"}
    if isinstance(scaling, Linear):
        return base | {"rope_type": "linear", "factor": scaling.factor}
    if isinstance(scaling, Dynamic):
        return base | {"rope_type": "dynamic", "factor": scaling.factor}
    if isinstance(scaling, Llama3):
        return base | {"rope_type": "llama3", "factor": scaling.factor, "low_freq_factor": scaling.low,
                       "high_freq_factor": scaling.high, "original_max_position_embeddings": scaling.original}  # fmt: skip
    if isinstance(scaling, Yarn):
        return base | {"rope_type": "yarn", "factor": scaling.factor, "original_max_position_embeddings": scaling.original,
                       "beta_fast": scaling.fast, "beta_slow": scaling.slow, "truncate": scaling.truncate,
                       **({} if scaling.attention is None else {"attention_factor": scaling.attention})}  # fmt: skip
    raise UserError(f"{type(scaling).__name__} scaling has no name there", fix="use Linear, Yarn or Llama3")

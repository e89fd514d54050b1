"""Reading a Hugging Face config.json such that no unknown field goes unnoticed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyformer.core.activation import Act
from anyformer.errors import UserError, did_you_mean
from anyformer.positions.rope import DynamicScaling, LinearScaling, Llama3Scaling, Scaling, YarnScaling, yarn_gain

# Fields of any config that do not affect what the network computes.
BY_REASON = {
    "where it came from": "_name_or_path _commit_hash name_or_path",
    "who wrote it": "transformers_version",
    "names the family": "model_type",
    "names the head": "architectures",
    "code of its own, which is never run": "auto_map",
    "type on disk; tensors say it themselves": "torch_dtype dtype",
    "decoding decides": "use_cache",
    "inspection": "output_attentions output_hidden_states",
    "shape of the answer in Python": "return_dict use_return_dict",
    "another runtime": "torchscript",
    "training": "gradient_checkpointing",
    "memory, not values": "chunk_size_feed_forward",
    "checked apart": "pruned_heads quantization_config",
    "type": "use_bfloat16",
    "another framework": "tf_legacy_loss",
    "kernel": (
        "attn_implementation _attn_implementation _attn_implementation_autoset experts_implementation "
        "_experts_implementation"
    ),
    "labels, read apart": "id2label label2id num_labels",
    "loss": "problem_type",
    "history": "finetuning_task",
    "decoding": (
        "task_specific_params prefix bos_token_id eos_token_id pad_token_id sep_token_id cls_token_id "
        "mask_token_id decoder_start_token_id forced_bos_token_id forced_eos_token_id bad_words_ids "
        "suppress_tokens begin_suppress_tokens max_length min_length do_sample early_stopping num_beams "
        "num_beam_groups diversity_penalty temperature top_k top_p typical_p repetition_penalty "
        "length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size num_return_sequences output_scores "
        "return_dict_in_generate remove_invalid_values exponential_decay_length_penalty"
    ),
    "tokenizer": "tokenizer_class",
    "start of training": "initializer_range initializer_factor",
    "said by the family": "is_encoder_decoder",
}
IRRELEVANT = {name: reason for reason, names in BY_REASON.items() for name in names.split()}

ACTS: dict[str, Act] = {
    "relu": "relu", "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_python": "gelu", "quick_gelu": "quick_gelu", "silu": "silu", "swish": "silu", "relu2": "relu2",
    "tanh": "tanh", "sigmoid": "sigmoid",
}  # fmt: skip
THEIR_ACTS: dict[Act, str] = {
    "relu": "relu", "gelu": "gelu", "gelu_tanh": "gelu_new", "quick_gelu": "quick_gelu", "silu": "silu",
    "relu2": "relu2",
    "tanh": "tanh", "sigmoid": "sigmoid",
}  # fmt: skip


LARGEST = 1e30  # limit on any number, against overflows
LAYERS = 4096  # limit on layers, far above any public model


class FamilyConfig:
    """A config.json that tracks which of its fields were read."""

    def __init__(
        self, data: Mapping[str, Any], where: str = "config.json", tensors: Mapping[str, Any] | None = None
    ) -> None:
        self.data, self.where, self.tensors = dict(data), where, tensors
        self.read: set[str] = set()

    def get(self, name: str, default: Any) -> Any:
        """A field, or transformers' default; the type must be that of the default."""
        self.read.add(name)
        value = self.data.get(name, default)
        if value is None and default is not None:
            value = default
        kinds = (int, float) if isinstance(default, float) else type(default)
        if default is not None and (not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool)):
            raise UserError(f"{name} is {value!r}", where=self.where, fix=f"expected a value like {default!r}")
        if isinstance(default, float) and not abs(value) < LARGEST:  # also rejects nan
            raise UserError(f"{name} is {value!r}", where=self.where, fix=f"expected a value like {default!r}")
        return float(value) if isinstance(default, float) else value

    def size(self, name: str, default: int | None, most: int = 2**24) -> Any:
        """A positive integer; None stays None if the default is None."""
        value = self.get(name, default)
        if value is None and default is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            raise UserError(
                f"{name} is {str(value)[:40]}", where=self.where, fix=f"expected a whole number, 1 to {most}"
            )
        return value

    def count(self, name: str, default: int | None) -> Any:
        """A number of modules, checked against the number of tensors in the files."""
        value = self.size(name, default, LAYERS)
        if value is not None and self.tensors is not None and value > max(len(self.tensors), 1):
            raise UserError(f"{name} is {value}, the files hold {len(self.tensors)} tensors", where=self.where,
                            fix="the folder's parts do not belong together")  # fmt: skip
        return value

    def only(self, name: str, value: Any, default: Any = ..., *, why: str = "is not implemented") -> None:
        """Require a field to have one value."""
        self.read.add(name)
        found = self.data.get(name, value if default is ... else default)
        if found != value:
            raise UserError(f"{name} = {found!r} {why}", where=self.where, fix=f"only {value!r} is supported")

    def skip(self, reason: str, *names: str) -> None:
        """Mark fields as read that do not affect what the network computes, with the reason."""
        assert reason
        self.read.update(names)

    def also(self, **names: str) -> None:
        """Second names of fields (second="field"), which take precedence if both are given, as in transformers."""
        for second, name in names.items():
            if second in self.data:
                self.data[name] = self.data.pop(second)

    def differ(self, name: str, other: str) -> bool | None:
        """Whether the file has both tensors with different values; None without a file."""
        if self.tensors is None:
            return None
        held = [self.tensors[each] for each in (name, other) if each in self.tensors]
        return len(held) == 2 and (held[0].shape != held[1].shape or not bool((held[0].read() == held[1].read()).all()))

    def act(self, name: str, default: str) -> Act:
        """An activation by its name in transformers."""
        value = self.get(name, default)
        if value not in ACTS:
            raise UserError(
                f"{name} = {value!r} is not implemented", where=self.where, fix=did_you_mean(str(value), ACTS)
            )
        return ACTS[value]

    def labels(self, default: int = 2) -> int:
        """The number of labels of a classification head."""
        named = self.data.get("id2label")
        if isinstance(named, dict) and named:
            return len(named)
        return self.size("num_labels", default)

    def unread(self) -> list[str]:
        """Fields that were not read and are not known to be irrelevant."""
        return sorted(set(self.data) - self.read - set(IRRELEVANT))

    def rope(
        self, default_theta: float = 10000.0, default_share: float = 1.0, *, partial: bool = False
    ) -> tuple[float, float, Scaling | None]:
        """Theta, the fraction of rotated channels, and the scaling, in the older or newer notation.

        `partial`: the family supports rotating a fraction of the channels; other families ignore the setting.
        """
        self.skip(
            "read here", "rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor", "default_theta"
        )
        older, newer = self.data.get("rope_scaling") or {}, self.data.get("rope_parameters") or {}
        if not isinstance(older, dict) or not isinstance(newer, dict):
            raise UserError("the rope settings are not an object", where=self.where, fix='expected {"rope_type": ...}')
        given = {**older, **newer}
        try:
            theta = float(given.get("rope_theta", self.data.get("rope_theta", default_theta)))
            share = float(given.get("partial_rotary_factor", self.data.get("partial_rotary_factor") or default_share))
            kind = given.get("rope_type", given.get("type", "default"))
            if share != 1.0 and not partial:
                raise UserError(f"partial_rotary_factor = {share:g} is ignored by this family's code",
                                where=self.where, fix="remove it, or set it to 1")  # fmt: skip
            return theta, share, self.scaling(kind, given)
        except UserError:
            raise
        except (TypeError, ValueError, KeyError, OverflowError) as error:
            raise UserError(
                f"the rope settings cannot be read ({error})", where=self.where, fix="expected numbers"
            ) from None

    def scaling(self, kind: str, given: Mapping[str, Any]) -> Scaling | None:
        trained = self.data.get("original_max_position_embeddings") or self.data.get("max_position_embeddings", 2048)
        original = int(given.get("original_max_position_embeddings") or trained)
        factor = float(given.get("factor") or 1.0)
        if kind in ("default", None):
            return None
        if kind == "linear":
            return LinearScaling(factor=factor)
        if kind == "dynamic":
            return DynamicScaling(factor=factor, original=int(self.data.get("max_position_embeddings", 2048)))
        if kind == "llama3":
            return Llama3Scaling(
                factor=factor,
                low=float(given["low_freq_factor"]),
                high=float(given["high_freq_factor"]),
                original=original,
            )
        if kind == "yarn":
            attention, some, every = given.get("attention_factor"), given.get("mscale"), given.get("mscale_all_dim")
            if attention is None and some and every:
                attention = yarn_gain(factor, some) / yarn_gain(factor, every)
            return YarnScaling(
                factor=factor,
                original=original,
                fast=float(given.get("beta_fast") or 32),
                slow=float(given.get("beta_slow") or 1),
                attention=None if attention is None else float(attention),
                truncate=bool(given.get("truncate", True)),
            )
        raise UserError(
            f"rope scaling {kind!r} is not implemented", where=self.where, fix="linear, dynamic, yarn and llama3 are"
        )


def rope_parameters(theta: float, scaling: Scaling | None, share: float = 1.0) -> dict[str, Any]:
    """The rope settings in transformers' notation."""
    base: dict[str, Any] = {"rope_theta": theta} | ({} if share == 1.0 else {"partial_rotary_factor": share})
    if scaling is None:
        return base | {"rope_type": "default"}
    if isinstance(scaling, LinearScaling):
        return base | {"rope_type": "linear", "factor": scaling.factor}
    if isinstance(scaling, DynamicScaling):
        return base | {"rope_type": "dynamic", "factor": scaling.factor}
    if isinstance(scaling, Llama3Scaling):
        frequencies = {"low_freq_factor": scaling.low, "high_freq_factor": scaling.high}
        stretch = {"factor": scaling.factor, "original_max_position_embeddings": scaling.original}
        return base | {"rope_type": "llama3"} | stretch | frequencies
    if isinstance(scaling, YarnScaling):
        stretch = {"factor": scaling.factor, "original_max_position_embeddings": scaling.original}
        ramp = {"beta_fast": scaling.fast, "beta_slow": scaling.slow, "truncate": scaling.truncate}
        gain = {} if scaling.attention is None else {"attention_factor": scaling.attention}
        return base | {"rope_type": "yarn"} | stretch | ramp | gain
    raise UserError(
        f"{type(scaling).__name__} scaling has no name there", fix="use LinearScaling, YarnScaling or Llama3Scaling"
    )

"""anyformer: one Transformer, every kind of sequence.

Names are loaded when first used, so that `import anyformer` and the command line's help cost next to nothing.
"""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING, Any

from anyformer.version import __version__

if TYPE_CHECKING:
    from anyformer import checks
    from anyformer.core.attend import attend
    from anyformer.core.block import Block
    from anyformer.core.loss import linear_cross_entropy
    from anyformer.core.model import Model, Output, Seq2Seq
    from anyformer.core.stack import Stack
    from anyformer.embeds import Joint, Patches, Table, Tokens
    from anyformer.errors import UserError
    from anyformer.estimators import (
        ImageClassifier,
        LanguageModel,
        MixedClassifier,
        MixedRegressor,
        TabularClassifier,
        TabularRegressor,
        TextClassifier,
        TextRegressor,
        TokenTagger,
        Translator,
    )
    from anyformer.feeds import MLP
    from anyformer.heads import LM, Distilled, Pooled, Regress, Span, TokenHead
    from anyformer.inspection.maps import attention_maps, explain_attention
    from anyformer.mixers import Attention, Cross
    from anyformer.norms import LayerNorm, NoNorm, RMSNorm
    from anyformer.positions import (
        NTK,
        Alibi,
        Buckets,
        Dynamic,
        Grid,
        Learned,
        Linear,
        Llama3,
        NoRelative,
        Rope,
        Shaw,
        Sinusoid,
        Yarn,
    )
    from anyformer.predictor import Predictor, load
    from anyformer.presets import preset, preset_names
    from anyformer.slots import Embed, Feed, Head, Mixer, Network, Norm, Position, Relative
    from anyformer.spec import Spec, replace_in
    from anyformer.training.job import Run, resume, train

WHERE = {
    "anyformer.core.attend": ("attend",),
    "anyformer.core.block": ("Block",),
    "anyformer.core.loss": ("linear_cross_entropy",),
    "anyformer.core.model": ("Model", "Output", "Seq2Seq"),
    "anyformer.core.stack": ("Stack",),
    "anyformer.embeds": ("Joint", "Patches", "Table", "Tokens"),
    "anyformer.errors": ("UserError",),
    "anyformer.estimators": (
        "ImageClassifier", "LanguageModel", "MixedClassifier", "MixedRegressor", "TabularClassifier",
        "TabularRegressor", "TextClassifier", "TextRegressor", "TokenTagger", "Translator",
    ),
    "anyformer.feeds": ("MLP",),
    "anyformer.heads": ("Distilled", "LM", "Pooled", "Regress", "Span", "TokenHead"),
    "anyformer.inspection.maps": ("attention_maps", "explain_attention"),
    "anyformer.mixers": ("Attention", "Cross"),
    "anyformer.norms": ("LayerNorm", "NoNorm", "RMSNorm"),
    "anyformer.positions": (
        "NTK", "Alibi", "Buckets", "Dynamic", "Grid", "Learned", "Linear", "Llama3", "NoRelative", "Rope", "Shaw",
        "Sinusoid", "Yarn",
    ),
    "anyformer.predictor": ("Predictor", "load"),
    "anyformer.presets": ("preset", "preset_names"),
    "anyformer.slots": ("Embed", "Feed", "Head", "Mixer", "Network", "Norm", "Position", "Relative"),
    "anyformer.spec": ("Spec", "replace_in"),
    "anyformer.training.job": ("Run", "resume", "train"),
}  # fmt: skip
HOME = {name: module for module, names in WHERE.items() for name in names}

__all__ = [
    "LM", "MLP", "NTK", "Alibi", "Attention", "Block", "Buckets", "Cross", "Distilled", "Dynamic", "Embed", "Feed",
    "Grid", "Head", "ImageClassifier", "Joint", "LanguageModel", "LayerNorm", "Learned", "Linear", "Llama3",
    "MixedClassifier", "MixedRegressor", "Mixer", "Model", "Network", "NoNorm", "NoRelative", "Norm", "Output",
    "Patches", "Pooled", "Position", "Predictor", "RMSNorm", "Regress", "Relative", "Rope", "Run", "Seq2Seq", "Shaw",
    "Sinusoid", "Span", "Spec", "Stack", "Table", "TabularClassifier", "TabularRegressor", "TextClassifier",
    "TextRegressor", "TokenHead", "TokenTagger", "Tokens", "Translator", "UserError", "Yarn", "__version__", "attend",
    "attention_maps", "checks", "explain_attention", "linear_cross_entropy", "load", "preset", "preset_names",
    "replace_in", "resume", "train",
]  # fmt: skip

logging.getLogger("anyformer").addHandler(logging.NullHandler())


def __getattr__(name: str) -> Any:
    if name == "checks":
        return importlib.import_module("anyformer.checks")
    if name not in HOME:
        raise AttributeError(f"anyformer has no name {name!r}")
    # A spec finds its parts by name among imported classes, so the first use of any name brings in every part.
    for folder in ("norms", "positions", "feeds", "mixers", "embeds", "heads"):
        importlib.import_module(f"anyformer.{folder}")
    value = getattr(importlib.import_module(HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

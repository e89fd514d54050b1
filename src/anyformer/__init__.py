"""anyformer: one Transformer, every kind of sequence.

Names are imported lazily, so that `import anyformer` and the command line's help are fast.
"""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING, Any

from anyformer.version import __version__

if TYPE_CHECKING:
    from anyformer import checks
    from anyformer.checkpoints.prune import prune
    from anyformer.core.attend import attend
    from anyformer.core.block import Block
    from anyformer.core.ensemble import Ensemble
    from anyformer.core.feed_stack import FeedStack
    from anyformer.core.loss import linear_cross_entropy
    from anyformer.core.model import Model, Output, Seq2Seq
    from anyformer.core.pyramid import Pyramid, Stage
    from anyformer.core.stack import Stack
    from anyformer.core.streams import Streams
    from anyformer.core.towers import Towers
    from anyformer.data.order import Order
    from anyformer.embeds import (
        ConvStem,
        Frames,
        Joint,
        Maps,
        Patches,
        PeriodicCurve,
        PiecewiseCurve,
        Queries,
        Regions,
        Series,
        Table,
        Tokens,
        Words,
    )
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
    from anyformer.feeds import MLP, Experts
    from anyformer.generation import Generation, generate
    from anyformer.generation.runners.compiled import compiled
    from anyformer.heads import (
        CRF,
        LM,
        Boxes,
        Distilled,
        Forecast,
        ImageTextHead,
        LMWithPair,
        Pair,
        PixelHead,
        Pooled,
        Regress,
        Replaced,
        SegmentHead,
        Span,
        TokenHead,
        WideAndDeep,
    )
    from anyformer.inference.opening import load
    from anyformer.inference.predictor import Predictor
    from anyformer.inspection.ablate import ablate
    from anyformer.inspection.capture import Capture, look
    from anyformer.inspection.convolution import attention_from_convolution
    from anyformer.inspection.flow import model_summary
    from anyformer.inspection.head_importance import head_importance
    from anyformer.inspection.head_similarity import head_similarity
    from anyformer.inspection.importance import permutation_importance
    from anyformer.inspection.maps import attention_maps, explain_attention
    from anyformer.inspection.position_pictures import position_pictures
    from anyformer.inspection.routing import tokens_per_expert
    from anyformer.kernels.quantise import quantise
    from anyformer.mixers import (
        AttendingRecurrent,
        Attention,
        Axial,
        BlockSparse,
        CoAttention,
        Convolution,
        Cross,
        Hyena,
        LinearAttention,
        Local,
        LocalRelation,
        LowRank,
        Plain,
        Recurrent,
        Window2D,
    )
    from anyformer.nets import SAGAN, Electra, LRNet, ResNet, VisualTransformer
    from anyformer.norms import LayerNorm, NoNorm, RMSNorm
    from anyformer.objectives import Batch, Objective
    from anyformer.planning.model_plan import ModelPlan
    from anyformer.positions import (
        Alibi,
        Buckets,
        DynamicScaling,
        Grid,
        Learned,
        LinearScaling,
        Llama3Scaling,
        NoRelative,
        NTKScaling,
        Rope,
        Shaw,
        Sinusoid,
        SinusoidGrid,
        SomeHeads,
        YarnScaling,
    )
    from anyformer.presets import preset, preset_names
    from anyformer.slots import Backbone, Body, Embed, Feed, Head, Mixer, Network, Norm, NumberCurve, Position, Relative
    from anyformer.spec import Spec, replace_in
    from anyformer.tasks import RowTask, Task
    from anyformer.tasks.prepare import prepare
    from anyformer.training.optim import AdamW, Muon
    from anyformer.training.schedule import WSD, Constant, Cosine, InverseSqrt, Linear
    from anyformer.training.settings import Training
    from anyformer.training.setup.planned_source import plan
    from anyformer.training.train import Run, resume, train

WHERE = {
    "anyformer.core.attend": ("attend",),
    "anyformer.core.block": ("Block",),
    "anyformer.core.ensemble": ("Ensemble",),
    "anyformer.core.feed_stack": ("FeedStack",),
    "anyformer.core.loss": ("linear_cross_entropy",),
    "anyformer.core.model": ("Model", "Output", "Seq2Seq"),
    "anyformer.core.pyramid": ("Pyramid", "Stage"),
    "anyformer.kernels.quantise": ("quantise",),
    "anyformer.core.stack": ("Stack",),
    "anyformer.core.streams": ("Streams",),
    "anyformer.core.towers": ("Towers",),
    "anyformer.data.order": ("Order",),
    "anyformer.embeds": (
        "ConvStem", "Frames", "Joint", "Maps", "Patches", "PeriodicCurve", "PiecewiseCurve", "Queries", "Regions",
        "Series", "Table", "Tokens", "Words",
    ),
    "anyformer.errors": ("UserError",),
    "anyformer.estimators": (
        "ImageClassifier", "LanguageModel", "MixedClassifier", "MixedRegressor", "TabularClassifier",
        "TabularRegressor", "TextClassifier", "TextRegressor", "TokenTagger", "Translator",
    ),
    "anyformer.feeds": ("Experts", "MLP"),
    "anyformer.generation": ("Generation", "generate"),
    "anyformer.generation.runners.compiled": ("compiled",),
    "anyformer.heads": (
        "Boxes", "CRF", "Distilled", "Forecast", "ImageTextHead", "LM", "LMWithPair", "Pair", "PixelHead", "Pooled",
        "Regress", "Replaced", "SegmentHead", "Span", "TokenHead", "WideAndDeep",
    ),
    "anyformer.inspection.convolution": ("attention_from_convolution",),
    "anyformer.inspection.ablate": ("ablate",),
    "anyformer.checkpoints.prune": ("prune",),
    "anyformer.inspection.capture": ("Capture", "look"),
    "anyformer.inspection.head_importance": ("head_importance",),
    "anyformer.inspection.head_similarity": ("head_similarity",),
    "anyformer.inspection.flow": ("model_summary",),
    "anyformer.inspection.importance": ("permutation_importance",),
    "anyformer.inspection.maps": ("attention_maps", "explain_attention"),
    "anyformer.inspection.position_pictures": ("position_pictures",),
    "anyformer.inspection.routing": ("tokens_per_expert",),
    "anyformer.planning.model_plan": ("ModelPlan",),
    "anyformer.mixers": (
        "AttendingRecurrent", "Attention", "Axial", "BlockSparse", "CoAttention", "Convolution", "Cross", "Hyena",
        "LinearAttention", "Local", "LocalRelation", "LowRank", "Plain", "Recurrent", "Window2D",
    ),
    "anyformer.nets": ("Electra", "LRNet", "ResNet", "SAGAN", "VisualTransformer"),
    "anyformer.norms": ("LayerNorm", "NoNorm", "RMSNorm"),
    "anyformer.objectives": ("Batch", "Objective"),
    "anyformer.positions": (
        "NTKScaling", "Alibi", "Buckets", "DynamicScaling", "Grid", "Learned", "LinearScaling", "Llama3Scaling",
        "NoRelative", "Rope", "Shaw", "Sinusoid", "SinusoidGrid", "SomeHeads",
        "YarnScaling",
    ),
    "anyformer.inference.opening": ("load",),
    "anyformer.inference.predictor": ("Predictor",),
    "anyformer.presets": ("preset", "preset_names"),
    "anyformer.slots": (
        "Backbone", "Body", "Embed", "Feed", "Head", "Mixer", "Network", "Norm", "NumberCurve", "Position", "Relative",
    ),
    "anyformer.spec": ("Spec", "replace_in"),
    "anyformer.tasks": ("RowTask", "Task"),
    "anyformer.tasks.prepare": ("prepare",),
    "anyformer.training.optim": ("AdamW", "Muon"),
    "anyformer.training.schedule": ("Constant", "Cosine", "InverseSqrt", "Linear", "WSD"),
    "anyformer.training.settings": ("Training",),
    "anyformer.training.setup.planned_source": ("plan",),
    "anyformer.training.train": ("Run", "resume", "train"),
}  # fmt: skip
# The modules that define the classes of saved specs.
PARTS = (
    "norms",
    "positions",
    "feeds",
    "mixers",
    "embeds",
    "heads",
    "nets",
    "core.feed_stack",
    "core.pyramid",
    "core.streams",
    "core.towers",
)
HOME = {name: module for module, names in WHERE.items() for name in names}

__all__ = [
    "CRF", "LM", "MLP", "SAGAN", "WSD", "AdamW", "Alibi", "AttendingRecurrent", "Attention", "Axial", "Backbone",
    "Batch", "Block", "BlockSparse", "Body", "Boxes", "Buckets", "Capture", "CoAttention", "Constant", "ConvStem",
    "Convolution", "Cosine", "Cross", "Distilled", "DynamicScaling", "Electra", "Embed", "Ensemble", "Experts", "Feed",
    "FeedStack", "Forecast", "Frames", "Generation", "Grid", "Head", "Hyena", "ImageClassifier", "ImageTextHead",
    "InverseSqrt", "Joint", "LMWithPair", "LRNet", "LanguageModel", "LayerNorm", "Learned", "Linear", "LinearAttention",
    "LinearScaling", "Llama3Scaling", "Local", "LocalRelation", "LowRank", "Maps", "MixedClassifier", "MixedRegressor",
    "Mixer", "Model", "ModelPlan", "Muon", "NTKScaling", "Network", "NoNorm", "NoRelative", "Norm", "NumberCurve",
    "Objective", "Order", "Output", "Pair", "Patches", "PeriodicCurve", "PiecewiseCurve", "PixelHead", "Plain",
    "Pooled", "Position", "Predictor", "Pyramid", "Queries", "RMSNorm", "Recurrent", "Regions", "Regress", "Relative",
    "Replaced", "ResNet", "Rope", "RowTask", "Run", "SegmentHead", "Seq2Seq", "Series", "Shaw", "Sinusoid",
    "SinusoidGrid", "SomeHeads", "Span", "Spec", "Stack", "Stage", "Streams", "Table", "TabularClassifier",
    "TabularRegressor", "Task", "TextClassifier", "TextRegressor", "TokenHead", "TokenTagger", "Tokens", "Towers",
    "Training", "Translator", "UserError", "VisualTransformer", "WideAndDeep", "Window2D", "Words", "YarnScaling",
    "__version__", "ablate", "attend", "attention_from_convolution", "attention_maps", "checks", "compiled",
    "explain_attention", "generate", "head_importance", "head_similarity", "linear_cross_entropy", "load", "look",
    "model_summary", "permutation_importance", "plan", "position_pictures", "prepare", "preset", "preset_names",
    "prune", "quantise", "replace_in", "resume", "tokens_per_expert", "train",
]  # fmt: skip

installed_parts = False
logging.getLogger("anyformer").addHandler(logging.NullHandler())


def __getattr__(name: str) -> Any:
    if name == "checks":
        return importlib.import_module("anyformer.checks")
    if name not in HOME:
        from anyformer.deprecated_names import find_new_name

        new_name = find_new_name(name)
        if new_name is None:
            raise AttributeError(f"anyformer has no name {name!r}")
        return globals().get(new_name) or __getattr__(new_name)
    # A spec finds its parts by name among imported classes, so the first use of any name imports every part.
    for module in PARTS:
        importlib.import_module(f"anyformer.{module}")
    bring_installed_parts()
    value = getattr(importlib.import_module(HOME[name]), name)
    globals()[name] = value
    return value


def bring_installed_parts() -> None:
    """Import the parts of installed packages, once; such a package may import anyformer meanwhile."""
    global installed_parts
    if not installed_parts:
        installed_parts = True
        from anyformer.own_parts import import_installed

        import_installed()


def __dir__() -> list[str]:
    return sorted(__all__)

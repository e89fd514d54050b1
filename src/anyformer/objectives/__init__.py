"""Objectives: what a model can be trained for."""

from anyformer.objectives.adversarial import Adversarial
from anyformer.objectives.batch import Batch
from anyformer.objectives.causal import Causal
from anyformer.objectives.classify import Classify
from anyformer.objectives.contrast import Contrast
from anyformer.objectives.detect import Detect
from anyformer.objectives.forecast import Forecasting
from anyformer.objectives.image_text import ImageText
from anyformer.objectives.masked import Masked
from anyformer.objectives.masked_patches import MaskedPatches
from anyformer.objectives.objective import Objective, Phase
from anyformer.objectives.regress import Regression
from anyformer.objectives.replaced import ReplacedTokenDetection
from anyformer.objectives.tag import Tag
from anyformer.objectives.translate import Translate

__all__ = [
    "Adversarial",
    "Batch",
    "Causal",
    "Classify",
    "Contrast",
    "Detect",
    "Forecasting",
    "ImageText",
    "Masked",
    "MaskedPatches",
    "Objective",
    "Phase",
    "Regression",
    "ReplacedTokenDetection",
    "Tag",
    "Translate",
]

"""Training objectives."""

from anyformer.objectives.adversarial import Adversarial
from anyformer.objectives.batch import Batch
from anyformer.objectives.causal import Causal
from anyformer.objectives.classify import Classify
from anyformer.objectives.contrast import Contrast
from anyformer.objectives.deshuffle import Deshuffle
from anyformer.objectives.detect import Detect
from anyformer.objectives.distill import Distill
from anyformer.objectives.drop_tokens import DropTokens
from anyformer.objectives.forecast import Forecasting
from anyformer.objectives.image_text import ImageText
from anyformer.objectives.masked import Masked
from anyformer.objectives.masked_patches import MaskedPatches
from anyformer.objectives.mass import Mass
from anyformer.objectives.objective import Objective, Phase
from anyformer.objectives.prefix import Prefix
from anyformer.objectives.question_answering import QuestionAnswering
from anyformer.objectives.regress import Regression
from anyformer.objectives.replaced import ReplacedByGenerator, ReplacedTokenDetection
from anyformer.objectives.sentences import SentenceContrast
from anyformer.objectives.spans import Spans
from anyformer.objectives.tag import Tag
from anyformer.objectives.translate import Translate

__all__ = [
    "Adversarial",
    "Batch",
    "Causal",
    "Classify",
    "Contrast",
    "Deshuffle",
    "Detect",
    "Distill",
    "DropTokens",
    "Forecasting",
    "ImageText",
    "Masked",
    "MaskedPatches",
    "Mass",
    "Objective",
    "Phase",
    "Prefix",
    "QuestionAnswering",
    "Regression",
    "ReplacedByGenerator",
    "ReplacedTokenDetection",
    "SentenceContrast",
    "Spans",
    "Tag",
    "Translate",
]

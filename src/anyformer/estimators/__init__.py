"""scikit-learn compatible estimators: `fit`, `predict`, `predict_proba`, `score`, for pipelines and grid searches."""

from anyformer.estimators.rows import (
    ImageClassifier,
    MixedClassifier,
    MixedRegressor,
    TabularClassifier,
    TabularRegressor,
    TextClassifier,
    TextRegressor,
)
from anyformer.estimators.sequences import LanguageModel, TokenTagger, Translator

__all__ = [
    "ImageClassifier",
    "LanguageModel",
    "MixedClassifier",
    "MixedRegressor",
    "TabularClassifier",
    "TabularRegressor",
    "TextClassifier",
    "TextRegressor",
    "TokenTagger",
    "Translator",
]

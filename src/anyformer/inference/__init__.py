"""Inference: predictor, predictions and evaluation, for training, serving, estimators and commands."""

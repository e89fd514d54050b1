"""A model at work: predictor, predictions and evaluation, for training, serving, estimators and commands alike."""

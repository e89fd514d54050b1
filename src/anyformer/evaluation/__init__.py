"""Evaluation: answers beside the truth, metrics, baselines and the report of a run."""

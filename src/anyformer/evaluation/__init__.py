"""Evaluation: predictions against ground truth, metrics, baselines and the report of a run."""

"""Prepared examples that yield batches: text windows, rows, series, detection."""

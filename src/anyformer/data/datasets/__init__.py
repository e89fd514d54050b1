"""Prepared examples that give batches: text windows, rows, series, detection."""

"""Inspection of a model without changing it."""

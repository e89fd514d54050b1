"""Objectives: what a model can be trained for."""

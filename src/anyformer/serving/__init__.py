"""Serving: a model over HTTP, for many clients at once."""

"""Recordings: decoding and log-mel spectrograms."""

"""Audio: decoding and log-mel spectrograms."""

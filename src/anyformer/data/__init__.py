"""Data: raw files to batches, and the tokenizers between text and token ids."""

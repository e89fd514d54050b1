"""Checkpoints: tensors on disk, two-way name tables, model folders for anyformer and Hugging Face."""

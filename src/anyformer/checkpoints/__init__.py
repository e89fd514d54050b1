"""Checkpoints: tensors on disk, two-way name tables, folders that open here and elsewhere."""

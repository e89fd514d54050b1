"""Distributed training: several processes train one model."""

"""Stores of sequences and their KV caches, behind one protocol (`store.py`); `open_store.py` says which serves whom."""

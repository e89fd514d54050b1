"""Stores of sequences and their KV caches, behind one interface (`store.py`); `open_store.py` chooses among them."""

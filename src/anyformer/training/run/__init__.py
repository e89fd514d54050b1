"""The folder of a run: what is in it, its history, and its replay."""

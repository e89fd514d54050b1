"""One file a claim; each holds a `CLAIM`."""

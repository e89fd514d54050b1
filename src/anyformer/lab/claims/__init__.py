"""One file per claim; each holds a `CLAIM`."""

"""Every data set by the defaults: `python -m benchmarks.scoreboard --help`, and docs/results.md for what it found."""

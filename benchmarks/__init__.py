"""Scripts that measure; each prints its figures, and `benchmarks/results` keeps them."""

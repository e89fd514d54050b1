"""What a run shows while it trains: progress, curves, samples, TensorBoard."""

"""Ways to run a decode step: eager, compiled, as a CUDA graph, or as one call of C++."""

"""How a decode step is run: eager, compiled, as a CUDA graph, or as one call of C++."""

"""What a model costs before it is built: parameters, FLOPs, memory, time, and how large it should be."""

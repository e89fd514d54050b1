"""The cost of a model before it is built: parameters, FLOPs, memory and time; scaling laws."""

"""Training on one GPU, anyformer beside the programs that people would use instead: python -m benchmarks.gpu --help"""

"""The core: context, residual, block, stack, model, and `attend`, the single entry point for attention kernels."""

"""The core: context, residual, block, stack, model, and the one seam where attention is computed."""

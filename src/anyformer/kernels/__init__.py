"""Optional speedups, each with a plain torch reference: Triton, C++, FlexAttention, int8, torch.compile."""

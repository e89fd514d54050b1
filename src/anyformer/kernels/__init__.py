"""What only makes it faster, each beside its plain reference in torch: Triton, C++, FlexAttention, int8, compiling."""

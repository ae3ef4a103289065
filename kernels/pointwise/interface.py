"""What the kernels of all devices are told."""

SILU, GELU_TANH = 0, 1

"""Triton kernels for 3x3 convolutions, and the choice between them and cuDNN."""

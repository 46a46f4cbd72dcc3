"""The numeric contract and the Triton kernels generated from it."""

"""The Triton kernels, one family per file; importing this package does not import triton (see `available.py`)."""

"""Pure functions over tensors, one folder per operation; ``reference.py`` is plain PyTorch.

Kernels know nothing of requests, pools or models: a caller hands them tensors, slot indices and a
plan, which is the part of the index arithmetic that all layers of one step share.
"""

"""Pure functions over tensors, one folder per operation.

``reference.py`` is the meaning in plain PyTorch, and what a CPU runs (some folders have a faster
form for whole chunks); ``triton_kernel.py`` beside it has the same signatures.  ``dispatch.py``
chooses between them by device.

Kernels know nothing of requests, pools or models: a caller hands them tensors, slot indices and a
plan, which is the part of the index arithmetic that all layers of one step share.
"""

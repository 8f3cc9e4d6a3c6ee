"""Pure functions over tensors, one folder per operation.

``reference.py`` defines each operation in plain PyTorch, and runs on a CPU (some folders have a
faster form for whole chunks); ``triton_kernel.py`` beside it has the same signatures.
``dispatch.py`` chooses between them by device.

Kernels know nothing of requests, pools or models: a caller passes tensors, slot indices and a
plan, which is the part of the index arithmetic that all layers of one step share.
"""

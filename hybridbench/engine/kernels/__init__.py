"""Pure functions over tensors, one folder per operation.

``reference.py`` defines each operation in plain PyTorch and runs on a CPU; ``chunked.py``, where
there is one, is a faster form for whole chunks.  ``triton_kernel.py`` has the same signatures.
``dispatch.py`` chooses between them by device.

Kernels do not depend on requests, pools or models.  The caller passes tensors, slot indices and a
plan: the index arithmetic that all layers of a step share.
"""

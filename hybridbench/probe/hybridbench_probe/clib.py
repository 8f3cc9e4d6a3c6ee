"""The C library of this process, loaded only once: each handle leaves a reference cycle behind."""

from __future__ import annotations

try:
    import ctypes
except Exception:  # a Python without libffi, or one that may not make memory executable
    LIBC = None
else:
    # PyDLL keeps the GIL during a call.
    LIBC = ctypes.PyDLL(None, use_errno=True)

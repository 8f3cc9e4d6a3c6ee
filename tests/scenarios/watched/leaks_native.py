"""Allocates 16 KiB per request with malloc and never frees it; no Python object shows it."""

from __future__ import annotations

import ctypes

from server import serve

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
SIZE = 16 * 1024


def handle(body: bytes) -> bool:
    """Answer; write to the buffer, so that it becomes resident."""
    buffer = libc.malloc(SIZE)
    ctypes.memset(buffer, body[0], SIZE)
    return True


if __name__ == "__main__":
    serve(handle)

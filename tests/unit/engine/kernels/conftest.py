"""Triton's interpreter without the work that it repeats at every call of a device function."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def _the_language_is_patched_once_per_kernel() -> Iterator[None]:
    """Device functions find ``triton.language`` as the kernel that calls them has patched it.

    The interpreter patches it again at each of their calls, which takes longer than most of them.
    ``triton.language.core`` is what Triton's own device functions use; it stays patched.
    """
    if os.environ.get("TRITON_INTERPRET") != "1":
        yield
        return
    from triton import language
    from triton.runtime import interpreter

    def call(self: interpreter.InterpretedFunction, *arguments: object, **named: object) -> object:
        if language.core.is_builtin(language.core.load):
            interpreter._patch_lang(self.fn)
        return self.rewrite()(*arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter.InterpretedFunction, "__call__", call)
        yield

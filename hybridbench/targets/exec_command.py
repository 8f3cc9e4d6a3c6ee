"""Tie this process's end to the bench's, then become the target's command.

``targets/command.py`` runs this file with a descriptor, the bench's pid, an environment entry and
the command.  If the system cannot start the command, the reason is written to the descriptor.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """Replace this process with the command; return only if that fails."""
    descriptor, parent, mark, *command = arguments
    os.set_inheritable(int(descriptor), False)
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        return 1  # the parent ended before prctl
    name, _, value = mark.partition("=")
    os.putenv(name, value)
    try:
        os.execvp(command[0], command)  # noqa: S606
    except OSError as error:
        os.write(int(descriptor), (error.strerror or str(error)).encode())
    return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

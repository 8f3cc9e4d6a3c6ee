"""A probe inside a watched Python program: standard library only, Python 3.9 and later.

It answers on a socket in the run's private directory.  Only names of types, attribute paths from
the program's code, and numbers leave the process; never keys, values or text.
"""

import os

from . import chosen


def start():
    # type: () -> None
    """Serve this process, and processes forked from it, if the environment selects it."""
    folder = os.environ.get(chosen.DIRECTORY, "")
    if folder and chosen.is_wanted(folder, os.environ.get(chosen.INSTRUMENT, "")):
        # Imports the standard library (20 ms) before the program can change how imports work.
        from . import server

        server.serve_process(folder)

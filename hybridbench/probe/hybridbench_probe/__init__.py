"""A probe inside a Python program that is watched: standard library only, Python 3.9 and later.

It answers on a socket in the private directory of the run.  What leaves the process are names of
types, attribute paths that stand in the program's code, and numbers; never keys, values or text.
"""

import os

from . import chosen


def start():
    # type: () -> None
    """Serve this process, and those that are forked from it, if the environment names it."""
    folder = os.environ.get(chosen.DIRECTORY, "")
    if folder and chosen.is_wanted(folder, os.environ.get(chosen.INSTRUMENT, "")):
        # Imports 20 ms of the standard library, before the program can change how imports work.
        from . import server

        server.serve_process(folder)

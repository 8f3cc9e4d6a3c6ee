"""Start the probe in this process if the environment requests it; stay invisible to the program.

Every Python that the program starts runs this file first, including old ones, so it uses only
Python 2 syntax.  A ``sitecustomize`` later on the path runs as if this one did not exist, with the
same messages if it fails.
"""

import os
import sys


def _without_this_folder():
    # type: () -> str
    here = os.path.realpath(os.path.dirname(os.path.abspath(__file__)))
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry or ".") != here]
    return here


def _start_probe(here):
    # type: (str) -> None
    writes_bytecode = sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    sys.path.insert(0, here)
    try:
        import hybridbench_probe  # type: ignore[import-not-found]

        hybridbench_probe.start()
    except Exception:  # noqa: S110 (the program must not notice; its watcher sees that no probe answers)
        pass
    finally:
        if here in sys.path:
            sys.path.remove(here)
        sys.path_importer_cache.pop(here, None)
        sys.dont_write_bytecode = writes_bytecode


def _run_shadowed():
    # type: () -> None
    own = sys.modules.pop(__name__, None)
    try:
        __import__(__name__)
    except ImportError:
        # There is no other sitecustomize, or it failed: ``site`` reports either as usual.
        if own is not None:
            sys.modules[__name__] = own
        raise


_here = _without_this_folder()
if sys.version_info >= (3, 9) and "HYBRIDBENCH_PROBE_DIR" in os.environ:
    _start_probe(_here)
if __name__ == "sitecustomize":
    _run_shadowed()

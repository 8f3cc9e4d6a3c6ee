"""Describe the available defects to a process that does not import the engine they patch.

``python -m hybridbench.worker.defect_catalog [NAME ...]`` writes the defects that the names of
``--defect`` select, or all defects and controls, pickled and without their patches, to its standard
output; only the process that started it reads it.
"""

from __future__ import annotations

import contextlib
import io
import pickle
import sys
from collections.abc import Sequence
from dataclasses import replace

from hybridbench.defects.catalog import CONTROLS, DEFECTS
from hybridbench.defects.defect import Defect
from hybridbench.defects.releases import expand
from hybridbench.defects.truth import Truth
from hybridbench.foundation.errors import HybridbenchError


def main(names: Sequence[str]) -> int:
    """Write what ``names`` select; return the exit code."""
    try:
        # A user's defect file runs here and may print: that must not mix with the answer.
        with contextlib.redirect_stdout(io.StringIO()):
            found = described(names)
    except HybridbenchError as error:
        sys.stderr.write(str(error))
        return int(error.exit_code)
    sys.stdout.buffer.write(pickle.dumps(found))
    return 0


def described(names: Sequence[str]) -> tuple[Defect, ...]:
    """Return the defects that ``names`` select, all if empty, without process-specific parts.

    Raises:
        HybridbenchError: no such defect, release or file, or two of them patch the same method.
    """
    found = expand(names) if names else (*DEFECTS, *CONTROLS)
    return tuple(replace(defect, patches=(), at_rate=None, truth=Truth()) for defect in found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

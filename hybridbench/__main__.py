"""``python -m hybridbench`` is the same as the ``hybridbench`` command."""

import os
import sys

if not sys.flags.safe_path and sys.path:
    # Python has put the working directory in front of the standard library: a queue.py there would
    # be imported instead of the library's.
    del sys.path[0]
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if root not in sys.path:
        sys.path.append(root)

from hybridbench.cli.app import main  # once the path is safe

if __name__ == "__main__":
    main()

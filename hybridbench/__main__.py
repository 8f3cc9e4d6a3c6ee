"""``python -m hybridbench`` is the same as the ``hybridbench`` command."""

from hybridbench.cli.app import main

if __name__ == "__main__":
    main()

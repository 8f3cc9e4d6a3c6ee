"""Compare versions of the engine: resolve them, run them in turns, store the results."""

"""Compare versions of the engine: resolve them, run them alternately, store the results."""

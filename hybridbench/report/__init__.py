"""Turn a stored run and its verdict into reports for people and programs."""

"""From a stored run and its verdict to something a person or a machine reads."""

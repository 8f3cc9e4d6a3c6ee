"""Classes of released engines, driven by our traffic: what the worker serves in their place."""

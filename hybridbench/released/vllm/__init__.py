"""vLLM: its scheduler, KV-cache manager and block pool."""

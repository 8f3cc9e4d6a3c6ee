"""The bundled engine behind an OpenAI-compatible HTTP interface."""

"""hybridbench: a soak-test and leak-regression bench for hybrid LLM engines."""

__version__ = "0.1.0"

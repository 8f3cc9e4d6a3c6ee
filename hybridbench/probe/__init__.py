"""The probe for watched Python programs: a folder put first on their PYTHONPATH."""

from pathlib import Path

FOLDER = Path(__file__).parent

"""What goes into a watched Python program: the folder that its PYTHONPATH begins with."""

from pathlib import Path

FOLDER = Path(__file__).parent

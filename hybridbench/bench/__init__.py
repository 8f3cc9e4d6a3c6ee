"""Benchmarks whose ratios the documents quote: measured side by side in one run."""

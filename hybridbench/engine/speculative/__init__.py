"""Speculative decoding: the drafter interface and the available drafters."""

"""Depthwise causal convolution with a window carried from step to step."""

"""Depthwise causal convolution with a carried window."""

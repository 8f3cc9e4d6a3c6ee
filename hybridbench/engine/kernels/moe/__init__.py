"""Mixture of experts: choose the experts of each token and compute them."""

"""The selective state space of Mamba2: one token, whole chunks, and the definition of both."""

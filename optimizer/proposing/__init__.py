"""Which point is tried next: the space's questions, samplers, estimates, warm starts."""

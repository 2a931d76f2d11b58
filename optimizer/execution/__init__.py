"""Who evaluates a batch: the cores of this machine, or a Ray cluster."""

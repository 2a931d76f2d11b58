"""How long a plan is simulated, and how often: short runs first, replications at the end."""

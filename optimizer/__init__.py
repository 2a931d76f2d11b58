"""What drives the search: the job, the Optuna study, the executor and the command line.

The only folder that imports Optuna, and `optimizer.cli` the only one that prints or exits.
"""

"""What drives the search: the job, the Optuna study, the executor and the command line.

A job (`job`) poses a problem (`problem`); a run of its study (`session`) asks for plans
(`proposing`), has them evaluated (`evaluate`, `execution`) as long and as often as pays
(`fidelity`), and keeps what came of them (`storing`, `directory`).

The only folder that imports Optuna, and `optimizer.cli` the only one that prints or exits.
"""

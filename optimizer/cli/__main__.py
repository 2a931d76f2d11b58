"""`python -m optimizer.cli` is `servefront`."""

from optimizer.cli import main

main()

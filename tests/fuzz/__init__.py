"""Random and mutated bytes into everything that reads bytes from outside.

`python -m tests.fuzz --inputs 1000000 --seed 7` is the long run; `make test` has a short one. A failure
prints the command that replays its one input.
"""

"""Faults on the real thing: a bank on HBase whose clients and servers are killed at random.

`python -m tests.chaos --minutes 10`. What clients did is in their histories (see `history`), what
became of it in the store; `verdict` compares the two.
"""

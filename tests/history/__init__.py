"""Histories of concurrent clients, and whether they can be told as one transaction after the other.

`events` is what a history is made of, `recording` how clients write theirs down, `workload` what
they do; `check` gives the anomalies, and nothing where the history is strictly serialisable.
"""

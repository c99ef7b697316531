"""Commit, recovery and the stored format; docs/protocol.md gives the argument."""

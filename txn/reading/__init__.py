"""Atomic reads of keys and of rows in order."""

"""Histories of concurrent clients, and whether they can be told as one transaction after the
other."""

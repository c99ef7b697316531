"""Stores that fail on purpose or count, around any other: for your own tests too."""

"""Ordered keys and values, in memory or on disk."""

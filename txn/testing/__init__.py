"""Stores that wrap any other and fail on purpose or count calls; for your own tests too."""

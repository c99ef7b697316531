"""A queue of locks in any store."""

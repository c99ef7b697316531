"""Process support: optional dependencies, forks, background threads, tokens and Java."""

"""What users hold: an engine, its blocks, and how one is opened."""

"""A real HBase on this machine, for tests, benches and trying things out."""

"""A real HBase on this machine, for tests, benchmarks and experiments."""

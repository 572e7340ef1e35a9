"""Benchmark generators: Avalanche scenarios with query-incremental streams."""

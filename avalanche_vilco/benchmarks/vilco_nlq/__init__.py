"""ViLCo-Bench, Natural Language Queries."""

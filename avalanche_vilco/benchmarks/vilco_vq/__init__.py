"""ViLCo-Bench, Visual Queries."""

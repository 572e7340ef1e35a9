"""ViLCo-Bench, Moment Queries."""

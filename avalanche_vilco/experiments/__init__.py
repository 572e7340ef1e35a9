"""Runs, predictions, scores and grids: a library without a parser."""

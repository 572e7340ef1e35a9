"""Plugins: one method a file."""

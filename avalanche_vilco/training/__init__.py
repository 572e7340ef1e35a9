"""Strategies and plugins."""

"""Hydra settings of ``avalanche-vilco run``."""

"""The command line: ``avalanche-vilco run``."""

"""Annotation files, features and text on disk become records and tensors."""

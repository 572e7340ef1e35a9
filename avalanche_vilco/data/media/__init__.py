"""Videos, and embeddings of their frames."""

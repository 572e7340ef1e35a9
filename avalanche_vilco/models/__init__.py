"""Text-conditioned localisers, their packed output, losses and decoding."""

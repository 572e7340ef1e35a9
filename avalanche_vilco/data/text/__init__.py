"""Text: tokens, CLIP features, narrations."""

"""In which precision a model computes."""

from typing import Literal

Precision = Literal["float32", "bf16"]
"""Of products in a model's forward pass; ``"bf16"`` is torch's autocast to bfloat16."""

"""Non-maximum suppression of scored windows: hard, linear, Gaussian, voting.

:func:`padded_nms` takes a batch of clips and returns tensors of a fixed size;
:func:`batched_nms` takes one clip and returns what it kept, as the function of that
name in the public code does. Both suppress as a :class:`NMSRule` says.

The highest remaining score over all labels of a clip is always taken next.
Suppression never raises a score, so ``max_segments`` such picks are the best
``max_segments`` of a run to the end, label by label: the cost grows with the number
of windows kept, not with the square of the number of candidates. Three loops pick the
same windows: one in numba (``avalanche-vilco[fast]``) takes one pick at a time; one in
NumPy takes the next pick of every label that may still count; one in torch, for other
devices than the CPU, takes a pick of every clip and never waits for the device.

Lengths are ``end - start + 1e-6`` in float32, as in the compiled NMS of the public
code.
"""

from avalanche_vilco.ops.nms.rule import Method, NMSRule
from avalanche_vilco.ops.nms.suppression import (
    Backend,
    KeptSegments,
    batched_nms,
    padded_nms,
)

__all__ = ["Backend", "KeptSegments", "Method", "NMSRule", "batched_nms", "padded_nms"]

"""Non-maximum suppression of scored windows, for a batch of clips at once.

Both functions always take the highest remaining score over all labels of a clip.
Suppression never raises a score, so ``max_segments`` such picks are the best
``max_segments`` of a run to the end, label by label: the cost grows with the number
of windows kept, not with the square of the number of candidates. Shapes depend on
the arguments only, nothing waits for the device.

Lengths are ``end - start + 1e-6`` in float32, as in the compiled NMS of the public
code, whose picks and scores these functions reproduce.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

_Suppress = Callable[[Tensor, Tensor, Tensor], Tensor]


def soft_nms(
    segments: Tensor,
    scores: Tensor,
    labels: Tensor | None = None,
    *,
    sigma: float = 0.5,
    min_score: float = 1e-3,
    max_segments: int = 200,
) -> tuple[Tensor, Tensor]:
    """Pick windows by score while lowering the scores of those they overlap.

    After each pick, the other windows of its label are multiplied by
    ``exp(-tIoU ** 2 / sigma)`` and dropped if they come out below ``min_score``. A
    pick itself is not compared with ``min_score``: the best window of every label
    survives.

    Scores that are not positive and finite, windows that are reversed or not finite,
    and labels below 0 (padding) are never picked. Ties go to the lowest index.

    :param segments: windows, ``(B, N, 2)`` as (start, end), in any unit.
    :param scores: ``(B, N)``.
    :param labels: ``(B, N)`` integers, -1 marks padding; None means one label.
    :param sigma: width of the decay, > 0.
    :param min_score: windows whose lowered score is below this are dropped, >= 0.
    :param max_segments: number M of windows to keep per clip.
    :return: indices ``(B, M)`` into the N candidates and lowered scores ``(B, M)``
        in float32, best first; unfilled places have index -1 and score 0.
    :raises ValueError: if a shape or a parameter is out of range.
    """
    _check_options(min_score, max_segments)
    if not sigma > 0:
        raise ValueError(f"expected sigma > 0 but got {sigma}")

    def lower(scores: Tensor, tiou: Tensor, same_label: Tensor) -> Tensor:
        lowered = scores * tiou.square_().div_(-sigma).exp_()
        lowered *= lowered >= min_score
        return torch.where(same_label, lowered, scores)

    return _pick_best(segments, scores, labels, max_segments, lower)


def hard_nms(
    segments: Tensor,
    scores: Tensor,
    labels: Tensor | None = None,
    *,
    iou_threshold: float = 0.5,
    min_score: float = 0.0,
    max_segments: int = 200,
) -> tuple[Tensor, Tensor]:
    """Pick windows by score and drop those of the same label that they overlap.

    Candidates are left out and ties broken as in :func:`soft_nms`.

    :param segments: windows, ``(B, N, 2)`` as (start, end), in any unit.
    :param scores: ``(B, N)``.
    :param labels: ``(B, N)`` integers, -1 marks padding; None means one label.
    :param iou_threshold: windows with this tIoU or more with a pick are dropped, in
        [0, 1].
    :param min_score: only scores above this are candidates, >= 0.
    :param max_segments: number M of windows to keep per clip.
    :return: indices ``(B, M)`` into the N candidates and scores ``(B, M)`` in
        float32, best first; unfilled places have index -1 and score 0.
    :raises ValueError: if a shape or a parameter is out of range.
    """
    _check_options(min_score, max_segments)
    if not 0 <= iou_threshold <= 1:
        raise ValueError(f"expected iou_threshold in [0, 1] but got {iou_threshold}")

    def drop(scores: Tensor, tiou: Tensor, same_label: Tensor) -> Tensor:
        return scores.masked_fill(same_label & (tiou >= iou_threshold), 0.0)

    scores = scores.masked_fill(scores <= min_score, 0.0)
    return _pick_best(segments, scores, labels, max_segments, drop)


@torch.no_grad()
def _pick_best(
    segments: Tensor,
    scores: Tensor,
    labels: Tensor | None,
    max_segments: int,
    suppress: _Suppress,
) -> tuple[Tensor, Tensor]:
    starts, ends, scores, labels = _candidates(segments, scores, labels)
    lengths = ends - starts + 1e-6
    n_picks = min(max_segments, scores.shape[1])
    # The leading empty columns keep `cat` legal when there is nothing to pick.
    indices = [labels.new_empty((len(labels), 0), dtype=torch.long)]
    picked = [scores[:, :0]]
    for _ in range(n_picks):
        score, best = scores.max(dim=1, keepdim=True)
        overlap = torch.minimum(ends, ends.gather(1, best))
        overlap = overlap.sub_(torch.maximum(starts, starts.gather(1, best))).clamp_(0)
        union = (lengths + lengths.gather(1, best)).sub_(overlap)
        same_label = labels == labels.gather(1, best)
        scores = suppress(scores, overlap.div_(union), same_label)
        scores = scores.scatter_(1, best, 0.0)
        indices.append(best)
        picked.append(score)
    return _padded(torch.cat(indices, 1), torch.cat(picked, 1), max_segments)


def _candidates(
    segments: Tensor, scores: Tensor, labels: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Starts, ends, scores and labels ``(B, N)``; score 0 where never to be picked."""
    if labels is None:
        labels = torch.zeros_like(scores, dtype=torch.long)
    _check_shapes(segments, scores, labels)
    segments, scores = segments.float(), scores.float()
    valid = segments.isfinite().all(dim=2) & (segments[..., 1] >= segments[..., 0])
    valid &= scores.isfinite() & (scores > 0) & (labels >= 0)
    starts, ends = segments.masked_fill(~valid.unsqueeze(2), 0.0).unbind(dim=2)
    return (
        starts.contiguous(),
        ends.contiguous(),
        scores.masked_fill(~valid, 0.0),
        labels,
    )


def _padded(
    indices: Tensor, scores: Tensor, max_segments: int
) -> tuple[Tensor, Tensor]:
    missing = (0, max_segments - indices.shape[1])
    indices = indices.masked_fill(scores <= 0, -1)
    return F.pad(indices, missing, value=-1), F.pad(scores, missing)


def _check_options(min_score: float, max_segments: int) -> None:
    if not min_score >= 0:
        raise ValueError(f"expected min_score >= 0 but got {min_score}")
    if max_segments < 0:
        raise ValueError(f"expected max_segments >= 0 but got {max_segments}")


def _check_shapes(segments: Tensor, scores: Tensor, labels: Tensor) -> None:
    if segments.ndim != 3 or segments.shape[2] != 2:
        raise ValueError(
            f"expected segments of shape (B, N, 2) but got {tuple(segments.shape)}"
        )
    for name, values in (("scores", scores), ("labels", labels)):
        if values.shape != segments.shape[:2]:
            raise ValueError(
                f"expected {name} of shape {tuple(segments.shape[:2])} but got "
                f"{tuple(values.shape)}"
            )

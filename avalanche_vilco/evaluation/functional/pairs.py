"""Pairs of predictions and targets of one clip and label, without a dense table."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from avalanche_vilco.evaluation.functional.order import by_number
from avalanche_vilco.evaluation.functional.references import Reference

# Labels above this are looked up by search, to keep the table small.
_LARGEST_TABLE = 1 << 22

# Predictions whose arithmetic stays in a processor's cache.
_PIECE = 1 << 14


def by_pieces(function: Callable[..., Tensor], *clips: Tensor) -> Tensor:
    """Apply a function that treats each clip alone to a few clips at a time.

    Memory then does not grow with the number of clips, and stays in the cache. A GPU
    takes all clips at once.

    :param function: takes ``clips``, gives a row per clip.
    :param clips: tensors with a row per clip.
    :return: what the function gives for all clips.
    """
    n_clips = len(clips[0])
    widest = max(clip.shape[1] for clip in clips)
    step = max(1, _PIECE // max(1, widest)) if clips[0].is_cpu else n_clips
    if n_clips <= step:
        return function(*clips)
    return torch.cat(
        [
            function(*piece)
            for piece in zip(*(c.split(step) for c in clips), strict=True)
        ]
    )


class Pairs(NamedTuple):
    """Predictions and targets of one clip and label.

    :param prediction: flat place of the prediction of each pair, ascending.
    :param target: flat place of the target, ascending for one prediction.
    :param group: number of the clip and label of each prediction, ``(B * M,)``, -1
        where the ground truth has none such.
    """

    prediction: Tensor
    target: Tensor
    group: Tensor


def pairs_of(labels: Tensor, target_labels: Tensor) -> Pairs:
    """Find the predictions and targets that share clip and label.

    :param labels: predicted labels, ``(B, M)`` integers, -1 marks padding.
    :param target_labels: labels of the ground truth, ``(B, N)``, -1 marks padding.
    :return: the pairs.
    """
    known = target_labels[target_labels >= 0].unique()
    group = _groups_of(labels, known)
    target_group = _groups_of(target_labels, known)
    targets = by_number(target_group)
    n_groups = len(target_labels) * len(known)
    per_group = torch.bincount(target_group + 1, minlength=n_groups + 1)
    first = per_group.cumsum(0) - per_group
    per_group[0] = 0  # padding

    n_pairs = per_group.index_select(0, group + 1)
    prediction = torch.repeat_interleave(n_pairs)
    shift = first.index_select(0, group + 1) - (n_pairs.cumsum(0) - n_pairs)
    place = shift.index_select(0, prediction) + torch.arange(len(prediction))
    return Pairs(prediction, targets.index_select(0, place), group)


def _groups_of(labels: Tensor, known: Tensor) -> Tensor:
    """(B, M) -> (B * M,), a number for each clip and label, -1 if it does not count."""
    classes = places_in(labels, known)
    clip = torch.arange(len(labels)).unsqueeze(1) * len(known)
    return torch.where(classes >= 0, clip + classes, -1).flatten()


def places_in(labels: Tensor, known: Tensor) -> Tensor:
    """Find labels in a list.

    :param labels: integers of any shape.
    :param known: the list, ascending, without repeats.
    :return: place of each label in the list, -1 where it is not there.
    """
    if not len(known):
        return torch.full_like(labels, -1)
    known = known.long()
    top = int(known[-1])
    if top > _LARGEST_TABLE:
        place = torch.searchsorted(known, labels.long()).clamp_(max=len(known) - 1)
        return torch.where(known[place] == labels, place, -1)
    table = torch.full((top + 3,), -1, device=labels.device)
    table[known + 1] = torch.arange(len(known), device=labels.device)
    places = labels.long().clamp(-1, top + 1) + 1
    return table.index_select(0, places.flatten()).view_as(labels)


def matching_labels(
    labels: Tensor, target_labels: Tensor, reference: Reference | None
) -> tuple[Tensor, Tensor]:
    """Predicted and ground-truth labels as an evaluator compares them.

    "actionformer" numbers the labels of the ground truth from 0 and leaves other
    predicted labels as they are, so that these may collide.

    :param labels: predicted labels, integers of any shape, -1 marks padding.
    :param target_labels: labels of the ground truth that counts, integers.
    :param reference: public evaluator whose rule to follow, None for ours.
    :return: both, unchanged unless the evaluator renumbers.
    """
    if reference != "actionformer":
        return labels, target_labels
    known = target_labels[target_labels >= 0].unique()
    places, target_places = places_in(labels, known), places_in(target_labels, known)
    return torch.where(places >= 0, places, labels), target_places


def rank_in_groups(groups: Tensor) -> Tensor:
    """Count, for each item, the earlier ones of its group.

    :param groups: group of each item, best item first, ``(..., n)`` integers.
    :return: ranks from 0, ``(..., n)``.
    """
    order = by_number(groups)
    grouped = groups.gather(-1, order)
    position = torch.arange(groups.shape[-1], device=groups.device).expand_as(groups)
    is_first = torch.ones_like(groups, dtype=torch.bool)
    is_first[..., 1:] = grouped[..., 1:] != grouped[..., :-1]
    first = torch.where(is_first, position, 0).cummax(dim=-1).values
    return torch.empty_like(order).scatter_(-1, order, position - first)


def select(places: Tensor, *columns: Tensor) -> list[Tensor]:
    """Rows of several tensors.

    :param places: rows to take, ``(n,)`` integers.
    :param columns: tensors with equally many rows.
    :return: one tensor of n rows for each.
    """
    return [column.index_select(0, places) for column in columns]

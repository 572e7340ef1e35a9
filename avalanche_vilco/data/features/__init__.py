"""Frozen video features on disk, read lazily through one protocol.

:func:`open_features` opens a folder, one file of all clips, or a list of these.
"""

from avalanche_vilco.data.features.concatenated import ConcatFeatures
from avalanche_vilco.data.features.database import LmdbFeatures
from avalanche_vilco.data.features.folder import SUFFIXES, FeatureFolder
from avalanche_vilco.data.features.hdf5 import Hdf5Features
from avalanche_vilco.data.features.npz import NpzFeatures
from avalanche_vilco.data.features.packed import PackedFeatures
from avalanche_vilco.data.features.packing import pack_features
from avalanche_vilco.data.features.parent import ParentCut, ParentFeatures
from avalanche_vilco.data.features.sources import (
    ALL_CLIPS,
    READABLE,
    FeatureSource,
    open_features,
    open_tokens,
)
from avalanche_vilco.data.features.store import (
    TOLERANCE_STEPS,
    FeatureStore,
    StoredFeatures,
)
from avalanche_vilco.data.features.torch_file import TorchFeatures
from avalanche_vilco.data.features.wrapped import (
    CachedFeatures,
    GridFeatures,
    ShuffledFeatures,
    resize_steps,
)

__all__ = [
    "ALL_CLIPS",
    "READABLE",
    "SUFFIXES",
    "TOLERANCE_STEPS",
    "CachedFeatures",
    "ConcatFeatures",
    "FeatureFolder",
    "FeatureSource",
    "FeatureStore",
    "GridFeatures",
    "Hdf5Features",
    "LmdbFeatures",
    "NpzFeatures",
    "PackedFeatures",
    "ParentCut",
    "ParentFeatures",
    "ShuffledFeatures",
    "StoredFeatures",
    "TorchFeatures",
    "open_features",
    "open_tokens",
    "pack_features",
    "resize_steps",
]

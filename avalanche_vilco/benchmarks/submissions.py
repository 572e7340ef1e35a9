"""Official annotation and submission files of the three tasks, as tensors to score.

Paths and parsed JSON are accepted alike. By default everything that the annotations
ask for counts, answered or not, and whatever they do not know is an error.
"""

from avalanche_vilco.benchmarks.submission_files import (
    Document,
    Note,
    Source,
    SubmissionError,
    Task,
    open_document,
)
from avalanche_vilco.benchmarks.vilco_mq.submission import (
    MomentFile,
    MomentSubmission,
    read_moments,
)
from avalanche_vilco.benchmarks.vilco_nlq.submission import (
    QuerySubmission,
    read_queries,
)
from avalanche_vilco.benchmarks.vilco_vq.submission import (
    TrackFile,
    TrackSubmission,
    read_tracks,
    tracks_of,
)
from avalanche_vilco.benchmarks.vilco_vq.track_document import track_document

__all__ = [
    "Document",
    "MomentFile",
    "MomentSubmission",
    "Note",
    "QuerySubmission",
    "Source",
    "SubmissionError",
    "Task",
    "TrackFile",
    "TrackSubmission",
    "open_document",
    "read_moments",
    "read_queries",
    "read_tracks",
    "track_document",
    "tracks_of",
]

"""Official annotation and submission files of the three tasks, as tensors to score.

Paths and parsed JSON are accepted alike. By default everything that the annotations
ask for counts, answered or not, and whatever they do not know is an error.
"""

from avalanche_vilco.evaluation.submissions.files import (
    Document,
    Note,
    Source,
    SubmissionError,
    Task,
    open_document,
)
from avalanche_vilco.evaluation.submissions.moments import (
    MomentFile,
    MomentSubmission,
    read_moments,
)
from avalanche_vilco.evaluation.submissions.queries import (
    QuerySubmission,
    read_queries,
)
from avalanche_vilco.evaluation.submissions.track_document import track_document
from avalanche_vilco.evaluation.submissions.tracks import (
    TrackFile,
    TrackSubmission,
    read_tracks,
    tracks_of,
)

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

"""Learn from the teacher's stored trajectories: all is as in `Way`."""

from distillery.config.ways import Stored
from distillery.training.ways.way import Way


class StoredWay(Way[Stored]):
    """Segments of the stored trajectories, in the order of the stream."""

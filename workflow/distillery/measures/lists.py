"""All measures of a sample, in the order of the report's columns; those of sets are `OF_SETS`."""

from collections.abc import Mapping

from distillery.measures.measure import Measure
from distillery.measures.of_clips import OF_CLIPS
from distillery.measures.of_judge import OF_JUDGE
from distillery.measures.of_pairs import OF_PAIRS
from distillery.measures.of_preference import OF_PREFERENCE

MEASURES: tuple[Measure, ...] = (*OF_JUDGE, *OF_PREFERENCE, *OF_PAIRS, *OF_CLIPS)
BY_NAME: Mapping[str, Measure] = {measure.name: measure for measure in MEASURES}
MEANS = tuple(measure for measure in MEASURES if measure.summary == "mean")
"""Those with a difference between two models."""


def measures_of(num_frames: int) -> tuple[Measure, ...]:
    """Those that samples of so many frames have, an image of one."""
    return tuple(measure for measure in MEASURES if measure.min_frames <= num_frames)

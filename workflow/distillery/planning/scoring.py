"""The plan of what is measured: vision models that work, and images that are enough for them."""

from collections.abc import Iterator

from distillery.config.run import Config
from distillery.config.samples import Evaluation
from distillery.measures.image_sets import describe_left_out, find_left_out
from distillery.measures.judge import check_judge
from distillery.measures.vision import check_vision_model
from distillery.notes import Note, advice, noting, refuse


def count_features(evaluation: Evaluation) -> dict[str, int]:
    """The features of each vision model in which sets of images are compared, by its name.

    Raises:
        ValueError: the judge or the model of preference is no CLIP model, or a vision model cannot
            be loaded or gives no features of an image.
    """
    notes: list[Note] = []
    found: dict[str, int] = {}
    with noting(notes):
        of_judge = {"judge": check_judge(evaluation.judge)}
    if evaluation.preference_model is not None:
        with noting(notes):
            check_judge(evaluation.preference_model, "evaluation.preference_model")
    for name, path in evaluation.vision_models.items():
        with noting(notes):
            found[name] = check_vision_model(f"evaluation.vision_models.{name}", path)
    refuse(notes)
    return found or of_judge


def on_measures(config: Config, num_features: dict[str, int], num_prompts: int) -> Iterator[Note]:
    """Measures that will be left out, since they take more images."""
    samples = config.samples
    num_sampled = min(num_prompts, samples.num_prompts or num_prompts)
    for name, number in num_features.items():
        left_out = find_left_out(number, num_sampled, samples.images_per_prompt)
        if left_out:
            yield advice(
                f"samples.images_per_prompt is {samples.images_per_prompt}",
                f", of {num_sampled} prompts: too few images for some measures in the {number} "
                f"features of {name}, which are left out ({describe_left_out(left_out)})",
            )

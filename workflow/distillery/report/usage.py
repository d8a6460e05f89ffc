"""The lines of Python that load the student and draw one of the report's images again."""

from distillery.measures.manifests import ModelSamples
from distillery.model_folder import METADATA, read_metadata
from distillery.run_folder import RunFolder
from distillery.student.usage import student_code


def loading_code(run_folder: RunFolder, samples: ModelSamples | None) -> str | None:
    """A script for the student's pipeline, as in its model card; None if it was not exported.

    Args:
        run_folder: where the pipeline may be.
        samples: the student's samples; the first one's prompt and seed are used.
    """
    folder = run_folder.student("pipeline")
    if not (folder / METADATA).is_file():
        return None
    call = read_metadata(folder)["call"]
    if samples is None:
        return student_code(call, folder.as_posix(), "a photo of a lighthouse at dusk")
    first = samples.table.iloc[0]
    return student_code(
        call,
        folder.as_posix(),
        str(first["prompt"]),
        int(first["noise_seed"]),
        f"noise of {first['prompt_id']}/{first['index']}",
    )

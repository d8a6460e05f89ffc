"""Whose work a teacher is: its id on the hub and its licence, for the cards of its students."""

from collections.abc import Mapping
from pathlib import Path

from distillery.config.teacher import Teacher
from distillery.teacher.folder import PipelineFolder

CARD = "README.md"
LICENSE = ("license", "license_name", "license_link")
"""Keys of a model card's header, as the hub knows them."""


def find_origin(teacher: Teacher, folder: PipelineFolder) -> dict[str, str]:
    """The entries `base_model` and `LICENSE` of a student's model card, as far as they are known.

    Args:
        teacher: as configured; one named by a folder has no `base_model`.
        folder: of it. Its card says the licence; a hub's card is downloaded if need be and can be.
    """
    is_of_hub = not Path(teacher.path).is_dir()
    found = {"base_model": teacher.path} if is_of_hub else {}
    card = folder.path / CARD
    if not card.is_file() and is_of_hub:
        card = _download(teacher) or card
    header = _header(card) if card.is_file() else {}
    return found | {key: str(header[key]) for key in LICENSE if header.get(key)}


def _download(teacher: Teacher) -> Path | None:
    """A hub repository's card; None where there is none, or no network."""
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(teacher.path, CARD, revision=teacher.revision))
    except (OSError, ValueError):
        return None


def _header(card: Path) -> Mapping[str, object]:
    """What a card says of its model; nothing where that cannot be read."""
    import yaml
    from huggingface_hub import ModelCard

    try:
        text = card.read_text(encoding="utf-8")
        return vars(ModelCard(text, ignore_metadata_errors=True).data)
    except (OSError, ValueError, yaml.YAMLError):
        return {}

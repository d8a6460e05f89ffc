"""A pipeline's folder in Diffusers format: find it, check that it is whole, say which it is."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from distillery.config.teacher import Teacher
from distillery.families import Family, family_named, student_family_of
from distillery.families.traced import TRACED, Unknown
from distillery.files import SINGLE_FILES, JsonObject, could_be_hub_id, hash_json, read_json
from distillery.hash_cache import hash_large_files
from distillery.hub import ask_once, explain_missing
from distillery.importing import imported
from distillery.model_folder import METADATA, read_metadata
from distillery.schedulers import without_warnings
from distillery.teacher.components import INDEX, dangling_in, is_component, missing_of
from distillery.teacher.known import check_known
from distillery.teacher.single_file import find_files, guess_base, tensors_in
from distillery.teacher.weights import (
    CONFIG,
    Size,
    Tensor,
    choose_variant,
    list_variants,
    measure,
    read_headers,
    weights_in,
    weights_of,
)

NO_INDEX = (
    "teacher.path must be a folder in Diffusers format (what `pipeline.save_pretrained` writes)"
)
SINGLE = "single file"
"""In a teacher's hash, the name of a component's weights that are in a file of their own."""


@dataclass(frozen=True)
class PipelineFolder:
    """The pipeline in a folder, a teacher's or a student's; what it is made of is read once.

    Attributes:
        variant: the set of weights files that is read, where a component has it.
        signature: what was learnt of its calls in this run, where it is traced.
        is_traced: whether nothing but that is known of its class.
        single_files: components whose weights are in a file of their own, `teacher.weights`.
    """

    path: Path
    variant: str | None = None
    signature: JsonObject | None = field(default=None, compare=False, repr=False)
    is_traced: bool = False
    single_files: tuple[tuple[str, Path], ...] = ()

    @property
    def files(self) -> dict[str, Path]:
        """`single_files` by component."""
        return dict(self.single_files)

    def read_from(self, name: str) -> Path:
        """What a component's weights are read from: its folder, or a file of their own."""
        return self.files.get(name, self.path / name)

    @property
    def is_to_be_learnt(self) -> bool:
        """Whether nothing was learnt of it yet."""
        return self.is_traced and self.signature is None

    @cached_property
    def index(self) -> Mapping[str, Any]:
        """What model_index.json holds."""
        return read_json(self.path / INDEX)

    @property
    def class_name(self) -> str:
        """The name of the pipeline's class."""
        name: str = self.index["_class_name"]
        return name

    @property
    def pipeline_class(self) -> Any:
        """The pipeline's class in Diffusers."""
        return imported("diffusers", self.class_name)

    @cached_property
    def family(self) -> Family:
        """The family of the pipeline's class, or what was learnt of it.

        Raises ValueError where there is neither.
        """
        learnt = self.signature or _signature_in(self.path)
        if learnt:
            return family_named(TRACED, learnt)
        if self.is_traced:
            return Unknown(self.components)
        return student_family_of(self.class_name)

    @cached_property
    def components(self) -> Mapping[str, str]:
        """The class names of all components that are present, by component."""
        return {
            name: str(value[1])
            for name, value in self.index.items()
            if is_component(value) and len(value) == 2 and None not in value
        }

    @property
    def components_left_out(self) -> list[str]:
        """Components that the pipeline's class takes and the folder says it does not have.

        These are the ones that the class does not call optional, such as T5 of SD3: Diffusers loads
        such a folder only with an explicit None for each.
        """
        optional = self.pipeline_class._optional_components
        absent = [name for name, value in self.index.items() if value == [None, None]]
        return [name for name in absent if name not in optional]

    @property
    def denoisers(self) -> list[str]:
        """Names of the denoisers that are present."""
        return [name for name in self.family.denoisers if name in self.components]

    @cached_property
    def denoiser_config(self) -> Mapping[str, Any]:
        """The configuration of the first denoiser; several are of one shape."""
        return read_json(self.path / self.denoisers[0] / CONFIG)

    @property
    def denoiser_class(self) -> type:
        """The Diffusers class of the denoisers."""
        network_class: type = imported("diffusers", self.denoiser_config["_class_name"])
        return network_class

    @cached_property
    def tensors(self) -> Mapping[str, Mapping[str, Tensor]]:
        """The tensors of each component's weights, from the headers of the files that are loaded.

        Raises ValueError for a truncated file, or one that Git LFS has not fetched.
        """
        return read_headers(self.path, self.variant) | {
            name: tensors_in(file, self.index[name], self.path / name)
            for name, file in self.single_files
        }

    @cached_property
    def sizes(self) -> Mapping[str, Size]:
        """The sizes of each component's weights; raises as `tensors`."""
        return {name: measure(tensors) for name, tensors in self.tensors.items()}

    @property
    def parameters(self) -> dict[str, int]:
        """Number of parameters of each component; raises as `sizes`."""
        return {name: size.num_parameters for name, size in self.sizes.items()}

    def chosen_variant(self, component: str) -> str | None:
        """The variant that is read of a component, None for its plain weights."""
        return choose_variant(self.path / component, self.variant)

    def fingerprint(self, components: Collection[str] = ()) -> str:
        """A hash of all that is read of it, bit for bit; where the folder lies does not matter.

        With names of components it is of their files alone.

        That is its model_index.json and all files of the components that are named there, but for
        descriptions (.md), hidden files, and sets of weights that are not read: two teachers that
        differ in those alone compute the same.
        """
        names = {
            f"{name}/{SINGLE}": file
            for name, file in self.single_files
            if name in (components or self.components)
        }
        names |= {
            file.relative_to(self.path).as_posix(): file for file in self._files_read(components)
        }
        hashes = hash_large_files(names.values())
        return hash_json({name: hashes[file] for name, file in names.items()})

    def _files_read(self, components: Collection[str] = ()) -> Iterator[Path]:
        """The files that decide what the pipeline computes; links that lead nowhere among them."""
        if not components:
            yield self.path / INDEX
        for component in (self.path / name for name in sorted(components or self.components)):
            unread = set(weights_in(component))
            if component.name not in self.files:
                unread -= set(weights_of(component, self.variant))
            for file in sorted(set(component.rglob("*")) - unread):
                # Downloads leave folders such as .cache/huggingface, with times in them.
                is_hidden = any(part.startswith(".") for part in file.relative_to(self.path).parts)
                if not (file.is_dir() or is_hidden or file.suffix == ".md"):
                    yield file

    def check_classes(self) -> None:
        """Raise unless there is a model_index.json of known classes; see `check_complete`."""
        if not (self.path / INDEX).is_file() and not (self.path / INDEX).is_symlink():
            single = _single_file_in(self.path)
            raise FileNotFoundError(
                f"{self.path} has no {INDEX}: "
                + (f"{_explain_single_file(str(single))}" if single else NO_INDEX)
            )
        check_known(self)

    def check_complete(self) -> None:
        """Raise unless every component that model_index.json names is there with all its weights.

        Raises:
            FileNotFoundError: something is missing.
            ValueError: no pipeline of a known family, or one that needs its own code.
        """
        self.check_classes()
        variants = list_variants(self.path)
        if self.variant is not None and self.variant not in variants:
            raise FileNotFoundError(
                f"teacher.variant is {self.variant!r}: {self.path} has no weights of that name; "
                f"there are: {', '.join(variants) or 'plain ones alone'}; null reads the plain ones"
            )
        missing = self._missing(self.variant)
        if not missing:
            return
        whole = [name for name in variants if not self._missing(name)]
        if whole:
            raise FileNotFoundError(
                f"the teacher in {self.path} lacks weights of teacher.variant "
                f"{self.variant or 'null'}, and has all of {' and of '.join(whole)}: "
                f"set teacher.variant: {whole[0]}"
            )
        raise FileNotFoundError(
            f"the teacher in {self.path} is incomplete, missing: {', '.join(missing)}; copy or "
            "download it again"
        )

    def _missing(self, variant: str | None) -> list[str]:
        """Files of the components that are read and missing, as paths from the folder."""
        missing = [
            file
            for name, class_name in self.components.items()
            for file in missing_of(self.path / name, class_name, variant, name in self.files)
        ]
        return [*missing, *dangling_in(self.path, replace(self, variant=variant)._files_read())]


def _signature_in(path: Path) -> JsonObject | None:
    """What a student's folder tells of its pipeline, where that was traced; who reads its weights
    finds what is damaged."""
    if not (path / METADATA).is_file():
        return None
    with suppress(ValueError):
        found: JsonObject | None = read_metadata(path).get("signature")
        return found
    return None


def find_teacher(teacher: Teacher) -> PipelineFolder:
    """The folder of the teacher, downloaded if `path` is a hub id, checked for completeness.

    Raises:
        FileNotFoundError: no such folder, or one of its files is missing.
        ValueError: the folder is not a Diffusers pipeline of a known family, or needs its own code.
    """
    path = Path(teacher.path)
    folder = PipelineFolder(
        path if path.is_dir() else _download(teacher),
        teacher.variant,
        teacher.signature,
        teacher.trace is not None,
    )
    if teacher.weights is not None:
        folder.check_classes()
        files = find_files(teacher, folder.path, folder.index, folder.denoisers)
        folder = replace(folder, single_files=tuple(files.items()))
    folder.check_complete()
    return folder


def _download(teacher: Teacher) -> Path:
    """The folder in the hub's cache, filled if need be.

    Raises FileNotFoundError for what is no hub id, and for one that cannot be had.
    """
    setting = f"teacher.path is {teacher.path!r}"
    if _is_single_file(teacher.path):
        absent = "" if _is_there(teacher.path) else "there is no such file here; "
        raise FileNotFoundError(f"{setting}: {absent}{_explain_single_file(teacher.path)}")
    if not could_be_hub_id(teacher.path):
        tilde = " (~ is not expanded here)" if teacher.path.startswith("~") else ""
        raise FileNotFoundError(
            f"{setting}: there is no such folder{tilde}; give a Diffusers folder (with a "
            "model_index.json) or the id of a hub repository, owner/name"
        )
    from diffusers import DiffusionPipeline

    try:
        with without_warnings():  # they tell of causes that the error names
            ask_once(teacher.path, INDEX, teacher.revision)
            downloaded = DiffusionPipeline.download(
                teacher.path, revision=teacher.revision, variant=teacher.variant
            )
    except (OSError, ValueError) as error:
        raise FileNotFoundError(explain_missing(setting, teacher.path, error)) from error
    return Path(downloaded)


# Teachers that are one file.


def _is_single_file(path: str) -> bool:
    """Whether a path names one file of weights: here, by a URL, or as owner/name/file."""
    return Path(path).is_file() or path.lower().endswith(SINGLE_FILES)


def _is_there(path: str) -> bool:
    """Whether a single file is on this machine; one with a URL is elsewhere, as its user knows."""
    return "://" in path or Path(path).is_file()


def _single_file_in(folder: Path) -> Path | None:
    """The file of weights at the top of a folder that is no pipeline, if there is exactly one.

    A config.json beside it says that it is one network in another library's format, as a CLIP model
    is, and not a whole pipeline.
    """
    if (folder / CONFIG).is_file():
        return None
    weights_files = [path for path in folder.iterdir() if path.suffix.lower() in SINGLE_FILES]
    return weights_files[0] if len(weights_files) == 1 else None


def _explain_single_file(path: str) -> str:
    """How a single file is used, for the end of an error's message."""
    base = guess_base(Path(path))
    name = f"{base}, by its tensors" if base else "a folder, or owner/name on the hub"
    return (
        f"it is one file of weights; set teacher.path to the model that it was made of ({name}) "
        f"and teacher.weights: {path!r} (docs/teachers.md)"
    )

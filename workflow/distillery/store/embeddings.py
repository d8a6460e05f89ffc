"""Text embeddings on disk: once per distinct prompt, unpadded, read by row without loading all.

A chunk holds, for each named tensor of the conditioning, `{name}.values` (the rows of all prompts
one after another, (sum of l, ...)) and `{name}.lengths` (l of each prompt). Text 0 is the run's
negative prompt, the last ones are the prompts' own. What is stored of a prompt's image is among its
tensors; those of a negative prompt are of length 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch
from safetensors import safe_open

from distillery.families.protocol import Conditioning
from distillery.files import hash_file, hash_files, hash_json, repair_hint
from distillery.input_images import IMAGE, InputImage, own_images
from distillery.prompts import own_negatives
from distillery.store.chunks import DamagedChunkError
from distillery.store.shards import Manifest, chunk_repair_hint


@dataclass(frozen=True)
class Negative:
    """A negative prompt; a family may encode it differently from a prompt of the same text.

    None stands for what the stock pipeline does without one.
    """

    text: str | None


@dataclass(frozen=True)
class Pictured:
    """A prompt with its image."""

    text: str
    image: InputImage


Text = str | Pictured | Negative


def written(text: Text) -> str | None:
    """A text as the user wrote it."""
    return text if isinstance(text, str) else text.text


@dataclass(frozen=True)
class Texts:
    """The texts of a prompt table to encode, each once.

    Attributes:
        texts: the run's negative prompt, the prompts, then negative prompts of single prompts.
        prompt_of_row: for each row of the table the place of its prompt in `texts`.
        negative_of_row: the same for its negative prompt.
    """

    texts: list[Text]
    prompt_of_row: list[int]
    negative_of_row: list[int]


def distinct_texts(table: pd.DataFrame, negative_prompt: str | None) -> Texts:
    """The texts to encode; negative prompts of rows come last, so that they move no others.

    Args:
        negative_prompt: of the run, for rows without one of their own.
    """
    run = Negative(negative_prompt)
    prompts: list[Text] = [
        prompt if image is None else Pictured(prompt, image)
        for prompt, image in zip(table["prompt"], own_images(table), strict=True)
    ]
    negatives = [run if own is None else Negative(own) for own in own_negatives(table)]
    texts = list(dict.fromkeys([run, *prompts, *negatives]))
    position = {text: place for place, text in enumerate(texts)}
    return Texts(
        texts=texts,
        prompt_of_row=[position[prompt] for prompt in prompts],
        negative_of_row=[position[negative] for negative in negatives],
    )


def members_of(texts: Sequence[Text]) -> str:
    """The digest of a chunk's texts."""
    return hash_json({"texts": [_named(text) for text in texts]})


def _named(text: Text) -> str | dict[str, str | None]:
    if isinstance(text, Pictured):
        return {"prompt": text.text, IMAGE: text.image.sha256}
    return {"negative": text.text} if isinstance(text, Negative) else text


def pack(prompts: Sequence[Conditioning]) -> dict[str, torch.Tensor]:
    """Join unpadded prompts to a chunk's tensors."""
    tensors = {}
    for name in prompts[0]:
        tensors[f"{name}.values"] = torch.cat([prompt[name] for prompt in prompts])
        lengths = [len(prompt[name]) for prompt in prompts]
        tensors[f"{name}.lengths"] = torch.tensor(lengths, dtype=torch.int64)
    return tensors


class EmbeddingStore:
    """Random access to the embeddings of one prompt table; memory-mapped, nothing is preloaded.

    No merge has checked their bytes, so a chunk is hashed when its first row is read, or all of
    them by `verify`.
    """

    def __init__(self, manifest_path: Path, table: pd.DataFrame, is_verified: bool = False) -> None:
        """Open the embeddings of `table`.

        Args:
            is_verified: another process of this job calls `verify`, so this one need not hash.

        Raises:
            ValueError: they are of another table than this, or a chunk is damaged.
        """
        self._manifest = manifest = Manifest.open(manifest_path)
        self.recipe_hash = manifest.recipe_hash
        self._root = manifest_path.parent
        self._chunks = manifest.chunks
        self._verified = set(range(len(self._chunks))) if is_verified else set[int]()
        self._texts = distinct_texts(table, manifest.recipe["negative_prompt"])
        if not _has_texts(manifest, self._texts.texts):
            raise ValueError(
                f"{manifest_path} holds the embeddings of other prompts than the table's: "
                f"{repair_hint(manifest_path)}"
            )
        files = [safe_open(self._root / chunk.file, framework="pt") for chunk in self._chunks]
        keys = list(files[0].keys())
        self._names = [key.removesuffix(".lengths") for key in keys if key.endswith(".lengths")]
        self._values = [
            {name: file.get_tensor(f"{name}.values") for name in self._names} for file in files
        ]
        self._ends = [
            {name: file.get_tensor(f"{name}.lengths").cumsum(0).tolist() for name in self._names}
            for file in files
        ]

    @property
    def negative(self) -> Conditioning:
        """The embeddings of the run's negative prompt, unpadded."""
        return self._text(0)

    def row(self, row: int) -> Conditioning:
        """The embeddings of the prompt in one row of the table: name to (l, ...), unpadded."""
        return self._text(self._texts.prompt_of_row[row])

    def negative_row(self, row: int) -> Conditioning:
        """The embeddings of a row's negative prompt: its own, or the run's."""
        return self._text(self._texts.negative_of_row[row])

    def image(self, row: int) -> InputImage | None:
        """The image of the prompt in one row of the table, if it has one."""
        text = self._texts.texts[self._texts.prompt_of_row[row]]
        return text.image if isinstance(text, Pictured) else None

    def verify(self) -> None:
        """Hash all chunks, several at once; raises DamagedChunkError."""
        digests = hash_files(self._root / chunk.file for chunk in self._chunks)
        for number, chunk in enumerate(self._chunks):
            self._compare(number, digests[self._root / chunk.file])

    def _compare(self, number: int, digest: str) -> None:
        """Raise DamagedChunkError unless a chunk has the hash that the manifest gives."""
        chunk = self._chunks[number]
        if digest != chunk.sha256:
            raise DamagedChunkError(
                f"{self._root / chunk.file} is damaged (its bytes are not those of its manifest): "
                f"{chunk_repair_hint(self._root, chunk)}"
            )
        self._verified.add(number)

    def _text(self, text: int) -> Conditioning:
        number, row = self._manifest.place(text)
        if number not in self._verified:
            self._compare(number, hash_file(self._root / self._chunks[number].file))
        tensors = {}
        for name in self._names:
            ends = self._ends[number][name]
            begin = ends[row - 1] if row else 0
            tensors[name] = self._values[number][name][begin : ends[row]]
        return tensors


def holds_texts(manifest_path: Path, table: pd.DataFrame) -> bool:
    """Whether embeddings are of a prompt table's texts, by their manifest alone."""
    manifest = Manifest.read(manifest_path)
    return _has_texts(manifest, distinct_texts(table, manifest.recipe["negative_prompt"]).texts)


def _has_texts(manifest: Manifest, texts: Sequence[Text]) -> bool:
    """Whether the chunks hold exactly these texts, in this order."""
    ends = manifest.ends
    starts = [0, *ends[:-1]]
    digests = [members_of(texts[start:end]) for start, end in zip(starts, ends, strict=True)]
    return ends[-1] == len(texts) and digests == [chunk.members for chunk in manifest.chunks]

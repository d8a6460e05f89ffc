"""Tokenizers by what they do: whether one knows words, fits its text encoder, tells prompts apart.

Transformers makes a tokenizer that knows nothing, without a word, where the vocabulary is missing.
"""

import html
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from distillery.families.protocol import Pipeline
from distillery.files import read_json
from distillery.teacher.components import unusable
from distillery.teacher.folder import PipelineFolder
from distillery.teacher.weights import CONFIG

PROBES = ("red dog", "blue house", "one green bird", "two cats on a hill")
"""Texts that every tokenizer of a teacher tells apart."""
SPACES = "▁Ġ "
"""What pieces of nothing but a space are made of."""
MAX_NAMED = 5
BATCH = 4096
"""Texts that are tokenized at once."""


def tokenizers_of(folder: PipelineFolder, pipeline: Pipeline) -> dict[str, Any]:
    """The tokenizers of a loaded pipeline, by component."""
    names = [name for name, kind in folder.components.items() if "Tokenizer" in kind]
    return {name: getattr(pipeline, name) for name in names}


def check_tokenizers(folder: PipelineFolder, pipeline: Pipeline) -> None:
    """Raise ValueError for a tokenizer that knows no words, or is not of its text encoder."""
    for name, tokenizer in tokenizers_of(folder, pipeline).items():
        with unusable(folder.path / name):
            _check_knows(tokenizer)
            _check_encoder(folder, name, tokenizer)


def check_class(folder: PipelineFolder, name: str) -> None:
    """Raise ValueError for a tokenizer of another class, which would read the words otherwise."""
    import transformers

    given = read_json(folder.path / name / "tokenizer_config.json").get("tokenizer_class")
    own = folder.components[name]
    kinds = [getattr(transformers, str(kind), None) for kind in (own, given)]
    generic = (None, transformers.PreTrainedTokenizerFast)
    if kinds[0] is not kinds[1] and not any(kind in generic for kind in kinds):
        raise ValueError(
            f"{folder.path / name}/tokenizer_config.json is of a {given}, and model_index.json "
            f"says {own}: put the right tokenizer there"
        )


def _check_knows(tokenizer: Any) -> None:
    ids = token_ids(tokenizer, PROBES)
    if len(set(ids)) < len(PROBES) or any(is_unknown(tokenizer, of_text) for of_text in ids):
        raise ValueError(
            f"it does not tell {PROBES[0]!r} from {PROBES[1]!r}: its vocabulary "
            f"({' or '.join(tokenizer.vocab_files_names.values())}) is missing, empty or damaged; "
            "copy or download it again"
        )


def _check_encoder(folder: PipelineFolder, name: str, tokenizer: Any) -> None:
    """Raise ValueError for ids that the text encoder has not, or for more of them than it reads."""
    encoder = name.replace("tokenizer", "text_encoder")
    if encoder not in folder.components:
        return
    config = read_json(folder.path / encoder / CONFIG)
    text = config.get("text_config")
    config = config | text if isinstance(text, dict) else config
    num_tokens, most = config.get("vocab_size"), config.get("max_position_embeddings")
    if isinstance(num_tokens, int):
        highest = max(map(max, token_ids(tokenizer, PROBES)))
        if highest >= num_tokens:
            raise ValueError(
                f"it gives tokens up to {highest:,}, and {encoder} has {num_tokens:,}: it is not "
                "the one of this text encoder"
            )
    # Only CLIP's pipelines pad to what the tokenizer says.
    if "CLIP" not in folder.components[encoder] or not isinstance(most, int):
        return
    if tokenizer.model_max_length > most:
        given = tokenizer.model_max_length if tokenizer.model_max_length < 1 << 31 else "missing"
        raise ValueError(
            f"model_max_length is {given} in its tokenizer_config.json, and {encoder} reads {most} "
            f'tokens: write "model_max_length": {most} there'
        )


def check_told_apart(tokenizers: Mapping[str, Any], texts: Iterable[str]) -> None:
    """Raise ValueError for prompts that a tokenizer does not know, or takes for one another.

    Such prompts give one embedding. Differences of case, accents, space and signs are not looked
    at: some text encoders do not see them.
    """
    texts = list(texts)
    for name, tokenizer in tokenizers.items():
        first: dict[tuple[int, ...], str] = {}
        unknown, equal = [], []
        for start in range(0, len(texts), BATCH):
            batch = texts[start : start + BATCH]
            for text, ids in zip(batch, token_ids(tokenizer, batch), strict=True):
                if is_unknown(tokenizer, ids) and text.strip():
                    unknown.append(text)
                elif (other := first.setdefault(ids, text)) != text and (
                    letters_of(other) != letters_of(text)
                ):
                    equal.append(f"{other[:60]!r} and {text[:60]!r}")
        _refuse(name, [repr(text[:60]) for text in unknown], "become unknown tokens only")
        _refuse(name, equal, "become the same tokens")


def _refuse(name: str, shown: Sequence[str], how: str) -> None:
    if shown:
        more = f", and {len(shown) - MAX_NAMED:,} more" if len(shown) > MAX_NAMED else ""
        raise ValueError(
            f"prompts {how} in the teacher's {name}, which does not know their words: "
            f"{', '.join(shown[:MAX_NAMED])}{more}; write them in words that the teacher knows, or "
            "leave them out"
        )


def letters_of(text: str) -> str:
    """A text's letters and digits, without case and accents."""
    plain = unicodedata.normalize("NFKD", html.unescape(html.unescape(text))).casefold()
    return "".join(sign for sign in plain if sign.isalnum())


def token_ids(tokenizer: Any, texts: Sequence[str]) -> list[tuple[int, ...]]:
    """The tokens of each text, without those that pipelines add around it."""
    found = tokenizer(list(texts), add_special_tokens=False, truncation=False, verbose=False)
    return [tuple(ids) for ids in found.input_ids]


def is_unknown(tokenizer: Any, ids: Sequence[int]) -> bool:
    """Whether a text's tokens say nothing of it: none, or but for spaces the unknown one alone."""
    return all(
        index == tokenizer.unk_token_id
        or not str(tokenizer.convert_ids_to_tokens(index)).strip(SPACES)
        for index in ids
    )

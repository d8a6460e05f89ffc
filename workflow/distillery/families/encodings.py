"""How a pipeline encodes prompts, learnt: what it asks of its `encode_prompt`, and what it gets.

A prompt becomes a few tensors, its parts, and so does a negative prompt. Which leaf of a result is
a part of which is found by behaviour: it changes with the prompt, or with the negative prompt. What
the network is given of a prompt is one of its parts again.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any

import torch

from distillery.families.protocol import Conditioning, Pipeline
from distillery.families.recording import (
    NetworkCall,
    Place,
    UntraceableError,
    at,
    copied,
    dotted,
    leaves,
    mapped,
)
from distillery.families.text import pad_with_zeros
from distillery.families.tracing import Signature
from distillery.schedulers import with_methods

PROMPT, NEGATIVE = "prompt", "negative"
NEAR = 0.02
"""Relative difference of equal encodings: bfloat16 keeps 8 bits."""
TEXTS = ("apple", "two blue birds on a wall")
"""Of very different lengths, so that what is padded shows."""


@dataclass(frozen=True)
class Slot:
    """A place that a prompt fills, or a part of what it becomes.

    Attributes:
        of: the prompt, or the negative prompt.
        part: which of its tensors; -1: the text itself.
        is_listed: whether the place holds a list with an item for each sample, not a batch.
    """

    of: str
    part: int = -1
    is_listed: bool = False


@dataclass(frozen=True)
class Asked:
    """One call of `encode_prompt`.

    Attributes:
        arguments: by name, with slots for the texts.
        result: with slots for the parts of both prompts, and what is constant.
    """

    arguments: Mapping[str, Any]
    result: Any


@dataclass(frozen=True)
class Encodings:
    """How prompts are encoded in the calls of one pipeline.

    Attributes:
        guided, unguided: what is asked in a call with guidance, and in one without.
        no_negative: what the guided call passes on for the negative prompt where none is given.
        readings: places of the network's arguments that follow the prompt, to how they come from
            its parts; what is no `Reading` is the same for every prompt, (1, ...).
    """

    guided: tuple[Asked, ...]
    unguided: tuple[Asked, ...]
    no_negative: Any
    readings: Mapping[Place, Any]

    @property
    def reads_negatives(self) -> bool:
        """Whether a guided call encodes a negative prompt."""
        return any(
            isinstance(leaf, Slot) and leaf.of == NEGATIVE
            for asked in self.guided
            for leaf in leaves(asked.result).values()
        )

    # ---- from texts to parts ---------------------------------------------------------------------

    def encode(self, pipeline: Pipeline, of: str, text: str | None) -> dict[str, torch.Tensor]:
        """The parts of one text, each (l, ...) on the CPU.

        Args:
            pipeline: with its text encoders.
            of: `PROMPT` or `NEGATIVE`.
        """
        found: dict[str, torch.Tensor] = {}
        for asked in self.guided:
            device = pipeline._execution_device
            arguments = _with_slots(
                partial(self._filled, texts={of: text}, device=device), dict(asked.arguments)
            )
            with torch.no_grad():
                given = leaves(pipeline.encode_prompt(**arguments))
            for place, leaf in leaves(asked.result).items():
                if isinstance(leaf, Slot) and leaf.of == of:
                    part = given[place] if leaf.is_listed else given[place][0]
                    found[part_name(leaf.part)] = part.reshape(part.shape or (1,)).cpu().clone()
        return found

    def _filled(self, leaf: Any, texts: Mapping[str, str | None], device: torch.device) -> Any:
        if isinstance(leaf, Slot):
            text = texts.get(leaf.of, "")
            if leaf.of == NEGATIVE and text is None:
                return self.no_negative
            return [text] if leaf.is_listed else text
        return device if isinstance(leaf, torch.device) else leaf

    def pad(self, prompts: Sequence[Conditioning]) -> Conditioning:
        """A batch: zeros after shorter ones, and `{part}.length` where lengths differ."""
        batch: dict[str, torch.Tensor] = {}
        for name in prompts[0]:
            values = [prompt[name] for prompt in prompts]
            lengths = [len(value) for value in values]
            batch[name] = pad_with_zeros(values, max(lengths))
            batch[f"{name}.length"] = torch.tensor(lengths)
        return batch

    # ---- from parts to a call --------------------------------------------------------------------

    @contextmanager
    def given(
        self, pipeline: Pipeline, is_guided: bool, parts: Mapping[str, Conditioning]
    ) -> Iterator[None]:
        """Let `encode_prompt` give stored parts meanwhile; text encoders may be gone.

        Args:
            parts: of the prompts and of the negative prompts, padded batches on the device.
        """
        left = iter(self.guided if is_guided else self.unguided)
        (size,) = {len(value) for value in parts[PROMPT].values()}
        device = pipeline._execution_device

        def encode_prompt(*_args: Any, **_kwargs: Any) -> Any:
            result = next(left).result
            return _with_slots(lambda leaf: _of_batch(leaf, parts, size, device), result)

        with with_methods(pipeline, encode_prompt=encode_prompt):
            yield

    def read(self, prompts: Conditioning) -> dict[Place, Any]:
        """What the network is given of a padded batch of prompts, by place."""
        size = len(next(iter(prompts.values())))
        return {
            place: _repeated(reading, size)
            if isinstance(reading, torch.Tensor)
            else reading.of(prompts)
            for place, reading in self.readings.items()
        }


def _with_slots(change: Callable[[Any], Any], value: Any) -> Any:
    """Every leaf changed; a list of one listed slot becomes what its slot becomes."""
    if isinstance(value, dict):
        return {key: _with_slots(change, item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        if len(value) == 1 and isinstance(value[0], Slot) and value[0].is_listed:
            return change(value[0])
        return type(value)(_with_slots(change, item) for item in value)
    return change(value)


def _of_batch(leaf: Any, parts: Mapping[str, Conditioning], size: int, device: torch.device) -> Any:
    if isinstance(leaf, Slot):
        return _part(parts[leaf.of], leaf.part, leaf.is_listed)
    return _repeated(leaf, size).to(device) if isinstance(leaf, torch.Tensor) else leaf


def _part(prompts: Conditioning, part: int, is_listed: bool) -> Any:
    values = prompts[part_name(part)]
    if not is_listed:
        return values
    lengths = prompts[f"{part_name(part)}.length"].tolist()
    return [value[:length] for value, length in zip(values, lengths, strict=True)]


def _repeated(value: torch.Tensor, size: int) -> torch.Tensor:
    """A constant of one sample for `size`; one that counts no samples as it is."""
    is_one = value.ndim > 0 and len(value) == 1
    return value.expand(size, *value.shape[1:]).contiguous() if is_one else value


def part_name(part: int) -> str:
    """Of a prompt's part in what is stored of it."""
    return f"part{part}"


# ---- what the network is given of a prompt -------------------------------------------------------


@dataclass(frozen=True)
class Reading:
    """How an argument comes from a prompt's part.

    Attributes:
        form: of `FORMS`, or "with ones": as many as `ones` behind it.
        is_listed: whether it is a list with an item for each sample.
    """

    part: int
    form: str
    ones: int = 0
    is_listed: bool = False

    def of(self, prompts: Conditioning) -> Any:
        """Of a padded batch."""
        return self.formed(_part(prompts, self.part, self.is_listed))

    def formed(self, part: Any) -> Any:
        """Of the part's batch."""
        if self.form == "with ones":
            return torch.cat([part, part.new_ones(len(part), self.ones)], 1)
        return FORMS[self.form](part)


FORMS: Mapping[str, Callable[[Any], Any]] = {
    "as it is": lambda part: part,
    "with an axis": lambda part: part.unsqueeze(1),
}


# ---- learning ------------------------------------------------------------------------------------

CutCall = Callable[[Mapping[str, Any], bool, int], NetworkCall]
"""Makes a call with texts as arguments, guided or not, of so many samples, up to its first network;
returns what that would be given."""


@dataclass(frozen=True)
class _Run:
    """What `encode_prompt` was asked and gave in one call, and what the network would be given."""

    asked: list[dict[str, Any]]
    results: list[Any]
    call: NetworkCall


class Learner:
    """Learns the encodings of one pipeline.

    Attributes:
        takes_negative: whether the call takes a negative prompt.
    """

    def __init__(self, pipeline: Pipeline, cut: CutCall) -> None:
        """Nothing is called yet."""
        self._pipeline, self._cut = pipeline, cut
        call = inspect.signature(type(pipeline).__call__)
        self.takes_negative = "negative_prompt" in call.parameters

    def learn(self, signature: Signature, needs_none: bool) -> Encodings:
        """Raises UntraceableError: what cannot be learnt, and why.

        Args:
            needs_none: whether calls are made without a negative prompt.
        """
        one, other = TEXTS
        guided = self._run([one], other)
        slots = _slots(
            guided, self._run([other], other), self._run([one], ""), self._run([one, one], other)
        )
        plain, changed = self._run([one]), self._run([other])
        own = _slots(plain, changed, plain, self._run([one, one]))
        own = _as_in(guided, slots, plain, own)
        return Encodings(
            guided=_asked(guided, slots, one, other),
            unguided=_asked(plain, own, one, None),
            no_negative=self._no_negative(guided, one, other) if needs_none else "",
            readings=dict(_readings(signature, plain, changed, own)),
        )

    def _run(
        self, prompts: Sequence[str], negative: str | None = None, is_guided: bool = False
    ) -> _Run:
        """A call, guided where there is a negative prompt or where it is said."""
        arguments: dict[str, Any] = {"prompt": list(prompts)}
        if negative is not None and self.takes_negative:
            arguments["negative_prompt"] = [negative] * len(prompts)
        with watching(self._pipeline) as kept:
            call = self._cut(arguments, is_guided or negative is not None, len(prompts))
        return _Run([asked for asked, _ in kept], [given for _, given in kept], call)

    def _no_negative(self, guided: _Run, one: str, other: str) -> Any:
        """What is passed on as the negative prompt where the call is given none."""
        places = [it for it, leaf in leaves(guided.asked).items() if leaf == other]
        if not places:
            return None
        without = self._run([one], is_guided=True).asked
        if len(without) < len(guided.asked):
            raise UntraceableError(
                "its call does not guide without a negative prompt: set teacher.negative_prompt, "
                'if only to ""'
            )
        place = places[0]
        return at(without, place[:-1] if isinstance(place[-1], int) else place)


@contextmanager
def watching(pipeline: Pipeline) -> Iterator[list[tuple[dict[str, Any], Any]]]:
    """Keep what `encode_prompt` is asked and gives meanwhile, call by call.

    Raises UntraceableError where the pipeline has none.
    """
    if not hasattr(pipeline, "encode_prompt"):
        raise UntraceableError("it has no encode_prompt whose result could be stored")
    original = pipeline.encode_prompt
    kept: list[tuple[dict[str, Any], Any]] = []
    signature = inspect.signature(original)

    @wraps(original)
    def encode_prompt(*args: Any, **kwargs: Any) -> Any:
        # Copied before: some pipelines write into the list of prompts.
        asked = copied(dict(signature.bind(*args, **kwargs).arguments))
        result = original(*args, **kwargs)
        kept.append((asked, copied(result)))
        return result

    with with_methods(pipeline, encode_prompt=encode_prompt):
        yield kept


def _slots(base: _Run, by_prompt: _Run, by_negative: _Run, twice: _Run) -> dict[Place, Slot]:
    """Which leaves of the results follow the prompt, and which the negative prompt.

    Raises UntraceableError for one that follows both, or is no tensor, or counts no prompts.
    """
    found: dict[Place, Slot] = {}
    count = {PROMPT: 0, NEGATIVE: 0}
    others = leaves(by_prompt.results), leaves(by_negative.results)
    for place, leaf in leaves(base.results).items():
        follows = [not is_same(leaf, other.get(place)) for other in others]
        if not any(follows):
            continue
        if all(follows):
            raise UntraceableError(
                f"its encode_prompt gives {dotted(place)} of the prompt and the negative prompt "
                "together, so neither can be stored for itself"
            )
        of = PROMPT if follows[0] else NEGATIVE
        found[place] = Slot(of, count[of], _counts(place, leaf, base, twice))
        count[of] += 1
    if count[NEGATIVE] not in (0, count[PROMPT]):
        raise UntraceableError(
            f"its encode_prompt gives {count[PROMPT]} tensors of a prompt and {count[NEGATIVE]} of "
            "a negative prompt, which are stored alike"
        )
    return found


def is_same(one: Any, other: Any) -> bool:
    """Whether two leaves are equal."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.shape == other.shape and one.equal(other)
    return type(one) is type(other) and bool(one == other)


def _counts(place: Place, leaf: Any, base: _Run, twice: _Run) -> bool:
    """Whether a leaf is an item of a list of prompts; False: its first axis counts them."""
    if isinstance(leaf, torch.Tensor):
        doubled = at(twice.results, place)
        if leaf.ndim and len(leaf) == 1 and doubled.shape == (2, *leaf.shape[1:]):
            return False
        lists = [at(run.results, place[:-1]) for run in (base, twice)]
        if place[-1:] == (0,) and [len(it) for it in lists] == [1, 2]:
            return True
    raise UntraceableError(
        f"{dotted(place)} of what its encode_prompt gives follows the prompt, and neither an axis "
        "nor a list counts prompts"
    )


def _as_in(
    guided: _Run, slots: Mapping[Place, Slot], plain: _Run, own: Mapping[Place, Slot]
) -> dict[Place, Slot]:
    """The slots of a call without guidance with the numbers of those parts in one with it."""
    known = [
        (at(guided.results, place), slot) for place, slot in slots.items() if slot.of == PROMPT
    ]
    found = {}
    for place, slot in own.items():
        leaf = at(plain.results, place)
        same = [it for value, it in known if _is_near(leaf, value)]
        if not same:
            raise UntraceableError(
                f"{dotted(place)} of what its encode_prompt gives without guidance is nothing of "
                "what it gives with guidance"
            )
        found[place] = Slot(PROMPT, same[0].part, slot.is_listed)
    return found


def _is_near(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Equal but for rounding: an encoder may read both prompts in one batch."""
    if one.shape != other.shape:
        return False
    off = (one.double() - other.double()).abs().max()
    return bool(off <= NEAR * other.double().abs().max())


def _asked(
    run: _Run, slots: Mapping[Place, Slot], prompt: str, negative: str | None
) -> tuple[Asked, ...]:
    """A run's calls with slots in them."""
    texts = {prompt: PROMPT, negative: NEGATIVE}

    def text(leaf: Any, place: Place) -> Any:
        is_text = isinstance(leaf, str) and leaf in texts
        return Slot(texts[leaf], is_listed=isinstance(place[-1], int)) if is_text else leaf

    def part(leaf: Any, place: Place) -> Any:
        return slots.get(place, leaf)

    arguments, results = mapped(text, run.asked), mapped(part, run.results)
    return tuple(map(Asked, arguments, results))


def _readings(
    signature: Signature, one: _Run, other: _Run, slots: Mapping[Place, Slot]
) -> Iterator[tuple[Place, Any]]:
    """How each of the network's arguments that follow the prompt comes from its parts."""
    if signature.odd:
        raise UntraceableError(
            f"{dotted(signature.odd[0])} follows the prompts, and neither an axis nor a list "
            "counts them: a call would take one prompt"
        )
    for place in signature.rows:
        given = [at(run.call.arguments, place) for run in (one, other)]
        if is_same(_item(given[0]), _item(given[1])):
            yield place, given[0]
            continue
        found = next(_fitting(given, (one.results, other.results), slots), None)
        if found is None or place == signature.entry.place:
            raise UntraceableError(
                f"{dotted(place)} follows the prompt, and is none of the tensors that its "
                "encode_prompt gives of it"
            )
        yield place, found


def _item(argument: Any) -> Any:
    """The one prompt's own."""
    return argument[0] if isinstance(argument, list) else argument


def _fitting(
    given: Sequence[Any], results: Sequence[Any], slots: Mapping[Place, Slot]
) -> Iterator[Reading]:
    """The readings by which a part gives what the network was given, in both runs."""
    for place, slot in slots.items():
        if slot.is_listed != isinstance(given[0], list):
            continue
        parts = [at(result, place) for result in results]
        wanted = [_item(argument) for argument in given]
        for reading in _possible(slot, parts[0], wanted[0]):
            formed = map(reading.formed, parts)
            if all(
                it.shape == want.shape and it.to(want.dtype).equal(want)
                for it, want in zip(formed, wanted, strict=True)
            ):
                yield reading


def _possible(slot: Slot, part: torch.Tensor, wanted: torch.Tensor) -> Iterator[Reading]:
    yield Reading(slot.part, "as it is", is_listed=slot.is_listed)
    if slot.is_listed:
        return
    if part.ndim > 1:
        yield Reading(slot.part, "with an axis")
    if part.ndim == wanted.ndim == 2 and wanted.shape[1] > part.shape[1]:
        yield Reading(slot.part, "with ones", wanted.shape[1] - part.shape[1])

"""What a stock pipeline gives its network, learnt from its own calls, without an adapter.

Two places are the same in all pipelines that denoise with one scheduler: a network's `forward` and
the scheduler's `step`. What passes there in two unguided calls, of several prompts and of one
fewer, tells which argument is the state, which follow the step, which follow the prompt, and what
becomes of the network's output. Nothing is guessed from names. What was learnt is a claim about
behaviour, and `proofs.py` tries it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
import torch

from distillery.families.protocol import Denoiser, Pipeline
from distillery.families.recording import (
    NetworkCall,
    Place,
    Step,
    UntraceableError,
    at,
    dotted,
    first,
    leaves,
    mapped,
    put,
    trace,
)

Call = Callable[[Sequence[str]], Mapping[str, Any]]
"""The arguments of an unguided stock call for some prompts, with a generator of each."""

NEAR = {torch.float32: 1e-5, torch.float64: 1e-5, torch.bfloat16: 1e-2, torch.float16: 1e-3}
"""How far a number times the state may be from an argument, relative to the largest."""
PLAIN = (bool, int, float, str, type(None), np.generic, torch.dtype, torch.device)
"""Types of arguments that are the same whenever they are given."""

# ---- how states enter and predictions leave ------------------------------------------------------


def _stacked(value: Any) -> torch.Tensor | None:
    """A tensor, or a list of one tensor a sample as (b, ...); None for anything else."""
    if isinstance(value, torch.Tensor):
        return value
    if not isinstance(value, list | tuple) or not value:
        return None
    if not all(isinstance(item, torch.Tensor) for item in value):
        return None
    return torch.stack(list(value)) if len({item.shape for item in value}) == 1 else None


INTO: Mapping[str, Callable[[torch.Tensor], Any]] = {
    "as it is": lambda state: state,
    "with a frame": lambda state: state.unsqueeze(2),
    "a list": lambda state: list(state.unbind(0)),
    "a list with frames": lambda state: list(state.unsqueeze(2).unbind(0)),
}
"""How a state (b, *latent) becomes a network's argument."""

OUT_OF: Mapping[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "as it is": lambda output, state: output,
    "without the frame": lambda output, state: output.squeeze(2),
    "first channels": lambda output, state: output[:, : state.shape[1]],
    "last tokens": lambda output, state: output[:, -state.shape[1] :],
    "channels first": lambda output, state: output.movedim(-1, 1),
}
"""How a network's output, stacked, becomes a prediction; each may change its sign besides."""


@dataclass(frozen=True)
class Entry:
    """Where and how the state enters the network.

    Attributes:
        form: of `INTO`; or "in front" of other numbers along an axis, or "at the end", in place of
            all but others' first numbers.
        axis: for "in front" and "at the end".
    """

    place: Place
    form: str
    axis: int = 0

    def of(self, noisy: torch.Tensor, recorded: Any) -> Any:
        """The argument for (n, *latent); `recorded` has what stands behind, and the type."""
        behind = _stacked(recorded)
        assert behind is not None
        if not self.has_others:
            return INTO[self.form](noisy.to(behind.dtype))
        size = noisy.shape[self.axis]
        rest = behind.narrow(self.axis, size, behind.shape[self.axis] - size)
        return torch.cat([noisy.to(behind.dtype), rest], self.axis)

    @property
    def has_others(self) -> bool:
        """Whether the argument holds other numbers, too."""
        return self.form not in INTO

    def scale(self, step: Step) -> float:
        """The number by which the pipeline multiplied that step's state."""
        if self.has_others:
            return 1.0
        entered = _stacked(INTO[self.form](step.state))
        given = _stacked(at(step.calls[0].arguments, self.place))
        assert entered is not None
        assert given is not None
        if entered.to(given.dtype).equal(given):  # the nearest factor is off by the rounding
            return 1.0
        return _factor(entered.double(), given.double())


@dataclass(frozen=True)
class LateEntry(Entry):
    """A state whose first numbers along `axis`, `first` of them, are others, such as a clip's first
    frame."""

    first: int = 0

    def of(self, noisy: torch.Tensor, recorded: Any) -> Any:
        """The argument for (n, *latent); `recorded` has the first numbers, and the type."""
        front = recorded.narrow(self.axis, 0, self.first)
        size = noisy.shape[self.axis] - self.first
        rest = noisy.narrow(self.axis, self.first, size).to(recorded.dtype)
        return torch.cat([front, rest], self.axis)


@dataclass(frozen=True)
class Exit:
    """How a network's output becomes what the scheduler is given."""

    form: str
    sign: int

    def of(self, output: Any, noisy: torch.Tensor) -> torch.Tensor:
        """The prediction (n, *latent) for the states (n, *latent)."""
        stacked = _stacked(output)
        assert stacked is not None
        return self.sign * OUT_OF[self.form](stacked, noisy)


# ---- what is learnt ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Signature:
    """How a pipeline feeds its network without guidance.

    Attributes:
        components: the network of each step.
        entry, exit: of the state and of the prediction.
        clocks: places that follow the step, to one sample's value at each step.
        clock_rows: those of `clocks` that hold a value for each sample, not one for all.
        rows: places that follow the prompt, whose first axis counts samples (or a list does).
        odd: places that follow the prompts otherwise: such samples are computed one by one.
        repeated: places of lists that hold the same for each sample.
        template: the arguments, with all that is constant.
    """

    components: tuple[str, ...]
    entry: Entry
    exit: Exit
    clocks: Mapping[Place, tuple[torch.Tensor, ...]]
    clock_rows: frozenset[Place]
    rows: tuple[Place, ...]
    odd: tuple[Place, ...]
    repeated: tuple[Place, ...]
    template: Mapping[str, Any] = field(repr=False)

    @property
    def dtype(self) -> torch.dtype:
        """Of the states that the network is given."""
        (given,) = leaves([at(self.template, self.entry.place)]).values()
        dtype: torch.dtype = given.dtype
        return dtype

    @property
    def in_float32(self) -> frozenset[Place]:
        """Places of tables, and of times of each token, that are float32 where states are not."""
        clocks = {place: values[0][None] for place, values in self.clocks.items()}
        known = leaves(self.template) | clocks
        return frozenset(
            place
            for place, leaf in known.items()
            if isinstance(leaf, torch.Tensor)
            and leaf.ndim > 1
            and leaf.dtype == torch.float32 != self.dtype
            and place[: len(self.entry.place)] != self.entry.place
        )

    def prompts(self, call: NetworkCall, samples: Sequence[int]) -> dict[Place, Any]:
        """What of a recorded call follows these of its prompts."""
        found = {place: _picked(at(call.arguments, place), samples) for place in self.rows}
        return found | {place: at(call.arguments, place) for place in self.odd}

    def arguments(
        self, noisy: torch.Tensor, prompts: Mapping[Place, Any], steps: Sequence[int]
    ) -> dict[str, Any]:
        """The network's arguments.

        Args:
            noisy: (n, *latent), divided by its schedule's scale.
            prompts: as `prompts` gives them, of n samples.
            steps: of each sample, from 0.

        Raises UntraceableError where samples of different steps cannot share a call.
        """
        filled: Any = dict(self.template)
        for place, values in self.clocks.items():
            filled = put(filled, place, self._clock(place, values, steps))
        for place in self.repeated:
            filled = put(filled, place, at(filled, place)[:1] * len(noisy))
        for place, value in prompts.items():
            filled = put(filled, place, value)
        # All of it, at last: constants were learnt elsewhere, those that count prompts too.
        filled = mapped(
            lambda leaf, _: leaf.to(noisy.device) if isinstance(leaf, torch.Tensor) else leaf,
            filled,
        )
        state = self.entry.of(noisy, at(filled, self.entry.place))
        arguments: dict[str, Any] = put(filled, self.entry.place, state)
        return arguments

    def _clock(
        self, place: Place, values: Sequence[torch.Tensor], steps: Sequence[int]
    ) -> torch.Tensor:
        chosen = [values[step] for step in steps]
        if place in self.clock_rows:
            return torch.stack(chosen)
        if len(set(steps)) == 1:
            return chosen[0]
        if chosen[0].numel() > 1:
            raise UntraceableError(
                f"{dotted(place)} holds one value of shape {tuple(chosen[0].shape)} for a whole "
                "batch, so samples of different steps cannot share a call"
            )
        return torch.stack([value.reshape(()) for value in chosen])

    def predict(
        self,
        network: Denoiser,
        noisy: torch.Tensor,
        prompts: Mapping[Place, Any],
        steps: Sequence[int],
    ) -> torch.Tensor:
        """(n, *latent), what the stock call would give its scheduler; see `arguments`."""
        # A training's autocast to bfloat16 stacks no float16, which a teacher may have.
        with torch.autocast(noisy.device.type, enabled=False):
            given: Any = self.arguments(noisy, prompts, steps)
        if not any(own.dtype == self.dtype for own in network.parameters()):
            # A network that learns in float32, of a teacher in bfloat16: its values, rounded.
            given = mapped(partial(_as_wide, dtype=noisy.dtype), given)
        output = first(network(**given))
        return self.exit.of(output, noisy)


def _as_wide(leaf: Any, _place: Place, dtype: torch.dtype) -> Any:
    """A leaf in `dtype` where it has a floating type of fewer bits."""
    is_floating = isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
    return leaf.to(dtype) if is_floating and leaf.dtype.itemsize < dtype.itemsize else leaf


def _picked(value: Any, samples: Sequence[int]) -> Any:
    if isinstance(value, torch.Tensor):
        return value[list(samples)]
    return [value[sample] for sample in samples]


def learn(pipeline: Pipeline, call: Call, prompts: Sequence[str]) -> tuple[Signature, list[Step]]:
    """What two unguided calls tell, of all prompts and of all but the last; the first one's steps.

    Args:
        prompts: two and more, of different lengths.

    Raises UntraceableError: it cannot be learnt, and why.
    """
    steps = trace(pipeline, call(prompts))
    fewer = trace(pipeline, call(prompts[:-1]))
    for number, step in enumerate(steps):
        if len(step.calls) != 1:
            raise UntraceableError(
                f"it calls its networks {len(step.calls)} times before step {number} without "
                "guidance, and a student makes one call a step; does teacher.trace.unguided switch "
                "guidance off?"
            )
    calls = [step.calls[0] for step in steps]
    entry = _find_entry(steps)
    sorts = _Sorts(entry, calls[0].arguments, len(prompts))
    for place, leaf in leaves(calls[0].arguments).items():
        sorts.add(place, leaf, [at(it.arguments, place) for it in calls], fewer[0].calls[0])
    signature = Signature(
        components=tuple(it.component for it in calls),
        entry=entry,
        exit=_find_exit(steps),
        clocks=sorts.clocks,
        clock_rows=frozenset(sorts.clock_rows),
        rows=tuple(dict.fromkeys(sorts.rows)),
        odd=tuple(sorts.odd),
        repeated=tuple(dict.fromkeys(sorts.repeated)),
        template=calls[0].arguments,
    )
    _check_prompts(signature, calls[0], len(prompts))
    return replace(signature, template=_constant(signature)), steps


def _constant(signature: Signature) -> dict[str, Any]:
    """The template without what each call fills in; of the state the type alone."""
    kept: Any = dict(signature.template)
    for place in (*signature.clocks, *signature.rows):
        kept = put(kept, place, None)
    state = at(signature.template, signature.entry.place)
    small = state.new_zeros(1) if isinstance(state, torch.Tensor) else [state[0].new_zeros(1)]
    return dict(put(kept, signature.entry.place, small))


def _check_prompts(signature: Signature, call: NetworkCall, num_prompts: int) -> None:
    """Raise if two prompts give the network the same: they may be cut to what they share."""
    if signature.odd:
        return  # what they hold of one prompt is not known
    each = [leaves(signature.prompts(call, [sample])) for sample in range(num_prompts)]
    for one, other in combinations(each, 2):
        if one.keys() == other.keys() and all(one[it].equal(other[it]) for it in one):
            raise UntraceableError(
                "two of the prompts give the network the same arguments: what is read of them may "
                "end before they differ, see teacher.max_sequence_length"
            )


def _find_entry(steps: Sequence[Step]) -> Entry:
    """Where the state enters: the argument that is the state times a number, at every step."""
    arguments = steps[0].calls[0].arguments
    for place in _places(arguments):
        for form in INTO:
            if all(
                _is_scaled(INTO[form](it.state), at(it.calls[0].arguments, place)) for it in steps
            ):
                return Entry(place, form)
    for place, value in leaves(arguments).items():
        axis = _axis_in_front(value, steps[0].state)
        if axis:
            return Entry(place, "in front", axis)
    for place in leaves(arguments):
        late = [_first_others(at(it.calls[0].arguments, place), it.state) for it in steps]
        if late[0] is not None and all(it == late[0] for it in late):
            axis, first = late[0]
            return LateEntry(place, "at the end", axis, first)
    raise UntraceableError(
        "no argument of the network is the scheduler's state, nor begins with it: the pipeline "
        "changes states before the network sees them, or guides still, with two states for a "
        "prompt: does teacher.trace.unguided switch guidance off?"
    )


def _places(value: Any, place: Place = ()) -> Iterator[Place]:
    """Of all items at all depths, the outer ones first."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    inner = []
    for key, item in items:
        yield (*place, key)
        if isinstance(item, dict | list | tuple):
            inner.append((*place, key))
    for each in inner:
        yield from _places(value[each[-1]], each)


def _is_scaled(wanted: Any, given: Any) -> bool:
    """Whether an argument is of the wanted form, and a number times the wanted values."""
    if isinstance(wanted, list) != isinstance(given, list):
        return False
    left, right = _stacked(wanted), _stacked(given)
    if left is None or right is None or left.shape != right.shape:
        return False
    if not right.is_floating_point():
        return False
    near = max(NEAR[left.dtype], NEAR[right.dtype])
    factor = _factor(left.double(), right.double())
    off = (right.double() - factor * left.double()).abs().max()
    return factor > 0 and bool(off <= near * right.abs().max())


def _factor(wanted: torch.Tensor, given: torch.Tensor) -> float:
    """The number that brings the wanted values nearest to the given ones, in least squares."""
    return float((given * wanted).sum() / wanted.square().sum())


def _axis_in_front(value: Any, state: torch.Tensor) -> int:
    """The axis along which a tensor begins with the state; 0 where it does not."""
    if not isinstance(value, torch.Tensor) or value.ndim != state.ndim:
        return 0
    for axis in range(1, value.ndim):
        front = value.narrow(axis, 0, min(state.shape[axis], value.shape[axis]))
        # The pipeline may hold its state in float32, and give it in the network's type.
        if front.shape == state.shape and state.to(front.dtype).equal(front):
            return axis
    return 0


def _first_others(value: Any, state: torch.Tensor) -> tuple[int, int] | None:
    """The axis along which a tensor's first numbers are not the state's, and how many of them."""
    if not isinstance(value, torch.Tensor) or value.shape != state.shape:
        return None
    differs = value != state.to(value.dtype)
    for axis in range(1, value.ndim):
        places = differs.movedim(axis, 0).flatten(1).any(1)
        first = int(places.sum())
        if 0 < first < len(places) and bool(places[:first].all()):
            return axis, first
    return None


def _find_exit(steps: Sequence[Step]) -> Exit:
    """What becomes of the output: the form that gives the scheduler's input at every step."""
    state, prediction = steps[0].state.shape, steps[0].prediction.shape
    if prediction != state:
        raise UntraceableError(
            f"the scheduler is given {tuple(prediction)} for a state of {tuple(state)}: a learned "
            "variance, which no student can follow"
        )
    for form in OUT_OF:
        for sign in (1, -1):
            if all(_leaves_so(Exit(form, sign), step) for step in steps):
                return Exit(form, sign)
    shapes = [tuple(stacked.shape) if (stacked := _stacked(it)) is not None else type(it).__name__
              for it in (steps[0].calls[0].output, steps[0].prediction)]  # fmt: skip
    raise UntraceableError(
        f"the network returns {shapes[0]}, the scheduler is given {shapes[1]}, and neither its "
        "sign nor a part of it makes one of the other: the pipeline computes between them"
    )


def _leaves_so(way: Exit, step: Step) -> bool:
    if _stacked(step.calls[0].output) is None:
        return False
    try:
        found = way.of(step.calls[0].output, step.state)
    except IndexError:
        return False
    return found.shape == step.prediction.shape and found.to(step.prediction.dtype).equal(
        step.prediction
    )


class _Sorts:
    """Which of the arguments follow the step, which the prompt."""

    def __init__(self, entry: Entry, arguments: Mapping[str, Any], num_prompts: int) -> None:
        self.clocks: dict[Place, tuple[torch.Tensor, ...]] = {}
        self.clock_rows: list[Place] = []
        self.rows: list[Place] = []
        self.odd: list[Place] = []
        self.repeated: list[Place] = []
        self._entry = entry.place
        self._has_others = entry.has_others
        self._arguments = arguments
        self._num_prompts = num_prompts

    def add(self, place: Place, leaf: Any, series: Sequence[Any], fewer: NetworkCall) -> None:
        """Sort one leaf.

        Args:
            series: the same leaf at all steps.
            fewer: the first call of one prompt fewer.
        """
        if place[: len(self._entry)] == self._entry:
            if self._has_others:
                self.rows.append(place)  # what stands beside the state may be the prompt's
            return
        if not isinstance(leaf, torch.Tensor):
            if not isinstance(leaf, PLAIN):
                raise UntraceableError(
                    f"{dotted(place)} is of type {type(leaf).__name__}, which may have a state"
                )
            if any(each != leaf for each in series):
                raise UntraceableError(f"{dotted(place)} changes with the step, and is no tensor")
            self._add_plain(place, leaf, fewer)
            return
        other = at(fewer.arguments, place)
        counts = self._counts(leaf, other)
        if any(each.shape != leaf.shape or not each.equal(leaf) for each in series):
            self._add_clock(place, series, counts)
        elif counts:
            self.rows.append(place)
        elif self._is_listed(place, fewer):
            self.rows.append(place[:-1])
        elif not (isinstance(other, torch.Tensor) and other.equal(leaf)):
            self.odd.append(place)

    def _add_plain(self, place: Place, leaf: Any, fewer: NetworkCall) -> None:
        """A number, a word or a switch: the same for all samples, or for each in a list."""
        listed = [
            place[:end] for end in range(1, len(place)) if self._is_listed(place[: end + 1], fewer)
        ]
        if listed:
            items = at(self._arguments, listed[0])
            if any(item != items[0] for item in items):
                raise UntraceableError(f"{dotted(place)} follows the prompt, and is no tensor")
            self.repeated.append(listed[0])
        elif at(fewer.arguments, place) != leaf:
            raise UntraceableError(f"{dotted(place)} follows the number of prompts")

    def _counts(self, leaf: torch.Tensor, other: Any) -> bool:
        """Whether the first axis counts samples."""
        if not isinstance(other, torch.Tensor) or not leaf.ndim or not other.ndim:
            return False
        return (len(leaf), len(other)) == (self._num_prompts, self._num_prompts - 1)

    def _is_listed(self, place: Place, fewer: NetworkCall) -> bool:
        """Whether it is in a list of one item a sample."""
        if not isinstance(place[-1], int):
            return False
        listed = [at(given, place[:-1]) for given in (self._arguments, fewer.arguments)]
        if not all(isinstance(each, list | tuple) for each in listed):
            return False
        return [len(each) for each in listed] == [self._num_prompts, self._num_prompts - 1]

    def _add_clock(self, place: Place, series: Sequence[torch.Tensor], counts: bool) -> None:
        if counts:
            if any(not each.equal(each[:1].expand_as(each)) for each in series):
                raise UntraceableError(f"{dotted(place)} changes with the step and with the prompt")
            self.clock_rows.append(place)
        self.clocks[place] = tuple(each[0] if counts else each for each in series)

"""What passes between a stock pipeline, its networks and its scheduler while it is called."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch

from distillery.families.protocol import Denoiser, Pipeline
from distillery.schedulers import with_methods

Place = tuple[str | int, ...]
"""Where a value is in the arguments of a call: the argument's name, then keys and indices."""


class UntraceableError(ValueError):
    """The pipeline does something that a trace cannot learn; says what."""


@dataclass
class NetworkCall:
    """One forward pass.

    Attributes:
        component: the network's name in the pipeline.
        arguments: by the names of the network's `forward`, without those left out.
        output: the first thing that it returns.
    """

    component: str
    arguments: dict[str, Any]
    output: Any = None


@dataclass
class Step:
    """One step of the scheduler, and what the networks did before it.

    Attributes:
        calls: since the step before.
        state: (b, *latent), before the step.
        prediction: what the scheduler is given for it, after guidance.
        after: (b, *latent), the next state.
    """

    calls: list[NetworkCall]
    state: torch.Tensor
    timestep: Any
    prediction: torch.Tensor
    after: torch.Tensor


def trace(pipeline: Pipeline, arguments: Mapping[str, Any]) -> list[Step]:
    """Call a stock pipeline and return what passed, all of it copied; of two steps and more.

    Networks that worked before the first step alone, such as text encoders, are left out.

    Raises UntraceableError where no step was seen.
    """
    with recording(pipeline) as steps, torch.no_grad():
        pipeline(**arguments)
    if len(steps) < 2:
        raise UntraceableError(
            f"its call made {len(steps)} steps with `scheduler`: a trace needs a pipeline that "
            "denoises with that one scheduler, and two steps"
        )
    denoisers = {call.component for step in steps[1:] for call in step.calls}
    for step in steps:
        step.calls = [call for call in step.calls if call.component in denoisers]
    return steps


@contextmanager
def recording(pipeline: Pipeline) -> Iterator[list[Step]]:
    """Record the steps of a pipeline's calls meanwhile; its results do not change."""
    scheduler = getattr(pipeline, "scheduler", None)
    if scheduler is None:
        raise UntraceableError("it has no component `scheduler`")
    steps: list[Step] = []
    pending: list[NetworkCall] = []
    original = scheduler.step

    # Pipelines look at its signature: whether it takes a generator.
    @wraps(original)
    def step(
        model_output: torch.Tensor, timestep: Any, sample: torch.Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        # Copied before the step: some pipelines write their latents in place.
        before = (copied(sample), copied(timestep), copied(model_output))
        result = original(model_output, timestep, sample, *args, **kwargs)
        steps.append(Step(list(pending), *before, copied(first(result))))
        pending.clear()
        return result

    with ExitStack() as stack:
        for name, component in pipeline.components.items():
            if isinstance(component, torch.nn.Module):
                stack.enter_context(watched(name, component, pending))
        stack.enter_context(with_methods(scheduler, step=step, __deepcopy__=_refuse_copy))
        yield steps


def _refuse_copy(_memo: object) -> None:
    """A copy would step with the original's `step`, and change its state."""
    raise UntraceableError("it steps with copies of its scheduler")


@contextmanager
def watched(name: str, network: Denoiser, pending: list[NetworkCall]) -> Iterator[None]:
    """Append each call of a network to `pending`."""
    signature = inspect.signature(type(network).forward)

    def enter(module: Denoiser, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = dict(signature.bind(module, *args, **kwargs).arguments)
        del given[next(iter(given))]  # self
        pending.append(NetworkCall(name, copied(given)))

    def leave(_module: Denoiser, _args: tuple[Any, ...], output: Any) -> None:
        pending[-1].output = copied(first(output))

    hooks = [
        network.register_forward_pre_hook(enter, with_kwargs=True),
        network.register_forward_hook(leave),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


class _StoppedError(Exception):
    """A network was about to be asked."""

    def __init__(self, call: NetworkCall) -> None:
        super().__init__("stopped before its network")
        self.call = call


def cut(pipeline: Pipeline, names: Iterable[str], arguments: Mapping[str, Any]) -> NetworkCall:
    """What a call would give its network first; the networks `names` compute nothing.

    Raises UntraceableError where none of them is asked.
    """
    with ExitStack() as stack, torch.no_grad():
        for name in names:
            network = getattr(pipeline, name)
            stack.enter_context(with_methods(network, forward=_stop(name, network)))
            if hasattr(network, "attn_processors"):  # which a call may change meanwhile
                before = dict(network.attn_processors)
                stack.callback(network.set_attn_processor, before)
        try:
            pipeline(**arguments)
        except _StoppedError as stopped:
            return stopped.call
    raise UntraceableError("its call asks no network")


def _stop(name: str, network: Denoiser) -> Callable[..., Any]:
    takes = inspect.signature(type(network).forward)

    def forward(*args: Any, **kwargs: Any) -> Any:
        given = dict(takes.bind(network, *args, **kwargs).arguments)
        given.pop(next(iter(given)))  # self
        raise _StoppedError(NetworkCall(name, given))

    return forward


def first(output: Any) -> Any:
    """The first thing in what a network or a scheduler returns."""
    if isinstance(output, Mapping):  # Diffusers' outputs are mappings
        return next(iter(output.values()))
    return output[0] if isinstance(output, tuple) else output


# ---- values within arguments ---------------------------------------------------------------------


def mapped(change: Callable[[Any, Place], Any], value: Any, place: Place = ()) -> Any:
    """The same lists, tuples and mappings with every leaf changed."""
    if isinstance(value, dict):
        return {key: mapped(change, item, (*place, key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [mapped(change, item, (*place, index)) for index, item in enumerate(value)]
        return type(value)(items)
    return change(value, place)


def leaves(value: Any) -> dict[Place, Any]:
    """All leaves by their place."""
    found: dict[Place, Any] = {}
    mapped(lambda leaf, place: found.setdefault(place, leaf), value)
    return found


def at(value: Any, place: Place) -> Any:
    """What is at a place; None where there is nothing."""
    for part in place:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def put(value: Any, place: Place, item: Any) -> Any:
    """The same arguments with another item at a place."""
    if not place:
        return item
    first, *rest = place
    changed = dict(value) if isinstance(value, dict) else list(value)
    changed[first] = put(value[first], tuple(rest), item)  # type: ignore[index]
    return changed if isinstance(value, dict | list) else type(value)(changed)


def copied(value: Any) -> Any:
    """With tensors of its own."""
    return mapped(
        lambda leaf, _: leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf, value
    )


def dotted(place: Place) -> str:
    """A place in words."""
    return ".".join(map(str, place))

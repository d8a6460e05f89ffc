"""AnyFlow: Wan's network with a second time, the end of the step; students of any number of steps.

It is a family of students alone. `docs/design.md` says why a teacher cannot be one.
"""

import inspect
from collections.abc import Mapping
from typing import Any

import torch

from distillery.families.protocol import Conditioning, Denoiser, Pipeline, Setting
from distillery.families.wan import Wan
from distillery.schedulers import Scheduler

TIME, END_TIME = "condition_embedder.time_embedder.", "condition_embedder.delta_embedder."
"""Beginnings of the names of the weights that embed each time."""
NOT_TAKEN: Mapping[str, object] = {
    "image_dim": None,
    "added_kv_proj_dim": None,
    "pos_embed_seq_len": None,
    "qk_norm": "rms_norm_across_heads",
}
"""Settings of Wan's network that AnyFlow's has only so."""


class AnyFlow(Wan):
    """Adapter of `AnyFlowPipeline` (Gu et al. 2026, arXiv:2605.13724).

    Its network is told the time `t` of the state and the time `r` at which the step ends, and gives
    the mean velocity between them. Networks and schedulers hold clips as (f, c, h, w), the call's
    `latents` are Wan's (c, f, h, w).
    """

    name = "any_flow"
    pipeline_classes = ("AnyFlowPipeline",)
    denoisers = ("transformer",)
    single_network: Mapping[str, object] = {}

    def make(self, teacher: Denoiser) -> Denoiser:
        """The network that begins as a Wan teacher: told that a step ends where it begins, it gives
        the teacher's velocity.

        The embedder of `r` is a copy of that of `t`, and the two embeddings are mixed by shares
        that add up to one. The other weights are the teacher's own, not copies.

        Args:
            teacher: in float32, or on the meta device.

        Raises:
            ValueError: the teacher has parts for which AnyFlow's network has no place.
        """
        from diffusers import AnyFlowTransformer3DModel

        given: Mapping[str, Any] = teacher.config  # type: ignore[assignment]
        _check_shape(given)
        known = inspect.signature(AnyFlowTransformer3DModel.__init__).parameters
        weights = teacher.state_dict()
        weights |= {
            END_TIME + name.removeprefix(TIME): weight.clone()
            for name, weight in weights.items()
            if name.startswith(TIME)
        }
        with torch.device("meta"):  # no second set of weights, and none drawn at random
            network = AnyFlowTransformer3DModel(
                **{name: value for name, value in given.items() if name in known}
            )
        network.load_state_dict(weights, assign=True)
        device = next(iter(weights.values())).device
        network.condition_embedder.delta_emb_gate = torch.tensor(
            [network.config["gate_value"]], device=device
        )
        assert isinstance(network, torch.nn.Module)
        return network.eval()

    def around(self, network: Denoiser, vae: Any, scheduler: Scheduler) -> Pipeline:
        """The stock pipeline without what encodes prompts."""
        from diffusers import AnyFlowPipeline

        return AnyFlowPipeline(
            tokenizer=None,
            text_encoder=None,
            transformer=network,
            vae=vae,
            scheduler=scheduler,
        )

    def call_arguments(
        self, pipeline: Pipeline, prompts: Conditioning, negative: Conditioning, setting: Setting
    ) -> Mapping[str, object]:
        """As Wan's, but a call without guidance puts a negative prompt that it is given into its
        batch all the same."""
        arguments = dict(super().call_arguments(pipeline, prompts, negative, setting))
        if setting.guidance_scale <= 1.0:
            del arguments["negative_prompt_embeds"]
        return arguments

    def latents_of(self, states: torch.Tensor) -> torch.Tensor:
        """See `Family`."""
        return states.transpose(1, 2)

    def predict(
        self,
        denoiser: Denoiser,
        noisy: torch.Tensor,
        timestep: torch.Tensor,
        conditioning: Conditioning,
        setting: Setting,
    ) -> torch.Tensor:
        """The velocity at `timestep` itself: the mean of a step without length."""
        return self.predict_until(denoiser, noisy, timestep, timestep, conditioning, setting)

    def predict_until(
        self,
        denoiser: Denoiser,
        noisy: torch.Tensor,
        timestep: torch.Tensor,
        until: torch.Tensor,
        conditioning: Conditioning,
        setting: Setting,
    ) -> torch.Tensor:
        """The conditional branch of `AnyFlowPipeline.__call__`; each frame has its times."""
        num_frames = noisy.shape[2]
        prediction: torch.Tensor = denoiser(
            hidden_states=noisy.transpose(1, 2),
            timestep=timestep[:, None].expand(-1, num_frames),
            r_timestep=until[:, None].expand(-1, num_frames),
            encoder_hidden_states=conditioning["prompt_embeds"],
            return_dict=False,
        )[0]
        return prediction.transpose(1, 2)


def _check_shape(config: Mapping[str, Any]) -> None:
    """Raise ValueError for a network of Wan's class that AnyFlow's cannot be made of."""
    frames, height, width = config["patch_size"]
    other = [f"{name} {config[name]}" for name, only in NOT_TAKEN.items() if config[name] != only]
    if frames != 1 or height != width:
        other.append(f"patch_size {list(config['patch_size'])}")
    if other:
        raise ValueError(
            f"student.init is 'flow_map': the teacher's network has {', '.join(other)}, for which "
            "AnyFlow's has no place; use init: teacher"
        )

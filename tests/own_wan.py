"""The tiny Wan teacher by its formulas alone: what it says of a state, and its noise levels."""

from collections.abc import Sequence
from pathlib import Path

import torch
from diffusers import WanPipeline

from tiny import MAX_TOKENS


class OwnWan:
    """A guided flow-matching teacher, asked without any code of the library."""

    def __init__(self, folder: Path, prompts: Sequence[str], negative_prompt: str) -> None:
        """Load the stock pipeline and encode the prompts."""
        pipeline = WanPipeline.from_pretrained(folder, torch_dtype=torch.float32)
        self.network = pipeline.transformer.eval()
        with torch.no_grad():
            self.prompts, negative = pipeline.encode_prompt(
                list(prompts),
                [negative_prompt] * len(prompts),
                do_classifier_free_guidance=True,
                max_sequence_length=MAX_TOKENS,
            )
        self.negative = negative[:1]

    @staticmethod
    def sigmas(steps: int, shift: float = 3.0) -> list[float]:
        """Of a grid of 1,000 timesteps, shifted (Esser et al. 2024, arXiv:2403.03206, eq. 23)."""

        def shifted(time: float) -> float:
            return shift * time / (1 + (shift - 1) * time)

        first, last = shifted(1.0), shifted(1 / 1000)
        times = torch.linspace(first, last, steps, dtype=torch.float64).tolist()
        return [*map(shifted, times), 0.0]

    @torch.no_grad()
    def velocity(
        self, states: torch.Tensor, sigma: float, rows: Sequence[int], scale: float
    ) -> torch.Tensor:
        """Away from the image, (b, *latent): unguided plus `scale` times what the prompt adds."""
        timestep = torch.full((len(states),), 1000 * sigma)
        guided, unguided = (
            self.network(states, timestep, embeds, return_dict=False)[0]
            for embeds in (self.prompts[list(rows)], self.negative.expand(len(states), -1, -1))
        )
        velocity: torch.Tensor = unguided + scale * (guided - unguided)
        return velocity

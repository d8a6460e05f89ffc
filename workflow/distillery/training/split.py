"""Which of the stored trajectories a training learns from, and which it is only measured on."""

from bisect import bisect_right
from dataclasses import dataclass
from typing import Self

from distillery.config.training import on_held_out
from distillery.notes import refuse
from distillery.training.data import spread_evenly


@dataclass(frozen=True)
class Split:
    """Whole prompts are held out, spread evenly over the store: another noise of a prompt that is
    learned from would say little.

    Attributes:
        num_trajectories: of the store.
        per_prompt: of them, one after another.
        prompts: that are held out, in ascending order.
    """

    num_trajectories: int
    per_prompt: int
    prompts: tuple[int, ...] = ()

    @classmethod
    def of(cls, num_trajectories: int, per_prompt: int, num_held_out: int) -> Self:
        """Hold out so many prompts.

        Raises ValueError where none would be left.
        """
        num_prompts = num_trajectories // per_prompt
        refuse(on_held_out(num_held_out, num_prompts))
        return cls(num_trajectories, per_prompt, tuple(spread_evenly(num_prompts, num_held_out)))

    @property
    def held_out(self) -> list[int]:
        """The trajectories that are not learned from."""
        per_prompt = self.per_prompt
        return [row * per_prompt + index for row in self.prompts for index in range(per_prompt)]

    @property
    def num_learned(self) -> int:
        """How many trajectories are learned from."""
        return self.num_trajectories - len(self.prompts) * self.per_prompt

    def learned(self, number: int) -> int:
        """The trajectory of this number among those that are learned from."""
        prompt, index = divmod(number, self.per_prompt)
        # The i-th one held out is preceded by as many learned ones as its number less i.
        before = bisect_right(range(len(self.prompts)), prompt, key=self._learned_before)
        return (prompt + before) * self.per_prompt + index

    def _learned_before(self, place: int) -> int:
        """How many learned prompts precede the one that is held out at a place."""
        return self.prompts[place] - place

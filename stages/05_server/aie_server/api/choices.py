"""How many answers a request wants to each of its prompts, and how it wants them run."""

from dataclasses import dataclass
from typing import Final

from aie_engine import InvalidInputError, SamplingParams
from aie_server.api.fields import Fields
from aie_server.api.inputs import parse_priority
from aie_server.config import ServerConfig

__all__ = ["Fanout", "parse_fanout"]

_SEED_STEP: Final = 0x9E3779B97F4A7C15  # odd: all choices of a request have seeds of their own
_SEEDS: Final = 1 << 64


@dataclass(frozen=True, slots=True)
class Fanout:
    """Each choice is a request of the engine, which computes their common prompt once."""

    num_choices: int = 1
    priority: int = 0  # lower runs first
    cache_salt: str = ""  # prompts are shared only with requests of the same client and salt

    def check_prompts(self, num_prompts: int, config: ServerConfig) -> None:
        """Raises `InvalidInputError` where prompts and choices are too many together."""
        if num_prompts * self.num_choices > config.max_choices:
            raise InvalidInputError(
                f"n must be at most {config.max_choices // num_prompts} with {num_prompts} prompts: a request may have "
                f"{config.max_choices} choices in all.",
                param="n",
            )

    def sampling_of(self, number: int, sampling: SamplingParams, *, scores_prompt: bool) -> SamplingParams:
        """What choice `number` of a prompt samples by. The first takes the request's own seed, so that its text is that
        of a request for one choice. scores_prompt: whether it needs the prompt's log-probabilities, too."""
        if number == 0:
            return sampling
        if sampling.seed is not None:
            sampling = sampling.with_seed((sampling.seed + number * _SEED_STEP) % _SEEDS)
        return sampling if scores_prompt else sampling.without_prompt_logprobs()


def parse_fanout(fields: Fields, config: ServerConfig) -> Fanout:
    """`n` with `best_of`, `priority` and `cache_salt`."""
    num_choices = fields.integer("n", low=1, high=config.max_choices) or 1
    best_of = fields.integer("best_of", low=1, high=config.max_choices)
    if best_of is not None and best_of != num_choices:
        raise fields.error("best_of", f"left out or the same as n ({num_choices}): every choice is answered")
    salt = fields.text("cache_salt")
    if salt is not None and not 1 <= len(salt) <= config.max_cache_salt_chars:
        raise fields.error("cache_salt", f"a string of 1 to {config.max_cache_salt_chars} characters")
    return Fanout(num_choices, parse_priority(fields, config), salt or "")

"""Sampled text is a matter of the request alone: the same alone, in company, preempted, in chunks, guessed ahead of,
and out of the prefix cache, whatever it wishes."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest

from aie_engine import GenerateRequest

EOS = 96
WISHES: dict[str, dict[str, Any]] = {
    "plain": {"temperature": 3.0},
    "filtered": {"temperature": 3.0, "top_k": 30, "top_p": 0.95, "min_p": 0.001},
    "typical": {"temperature": 4.0, "typical_p": 0.8},
    "penalised": {"temperature": 2.0, "repetition_penalty": 1.3, "frequency_penalty": 1.0, "presence_penalty": 0.5},
    "greedy, penalised": {"frequency_penalty": 2.0, "repetition_penalty": 3.0},
    "biased": {"temperature": 3.0, "logit_bias": ((3, 4.0), (4, 4.0), (5, -100.0)), "bad_words": ((3, 4), (4, 4))},
    "few": {"temperature": 1.0, "allowed_token_ids": (1, 2, 3, EOS), "min_tokens": 20, "bad_words": ((1, 2),)},
    "scored": {"temperature": 3.0, "logprobs": 3, "prompt_logprobs": 2},
    "greedy": {},
}
PROMPTS = [[7, 8, 9] * 5, [1, 2, 3], list(range(30))]
NUM_TOKENS = 24


def add_all(rig: Any) -> list[str]:
    names: list[str] = []
    for p, prompt in enumerate(PROMPTS):
        for name, wish in WISHES.items():
            rig.add(f"{name} {p}", prompt, NUM_TOKENS, **{"temperature": 0.0, "seed": 100 + p, **wish})
            names.append(f"{name} {p}")
    return names


@pytest.fixture(scope="module")
def alone(new_rig: Callable[..., Any]) -> dict[str, tuple[Any, ...]]:
    """What each says when nobody else is there: tokens, scores of them, scores of the prompt."""
    said: dict[str, tuple[Any, ...]] = {}
    for p, prompt in enumerate(PROMPTS):
        for name, wish in WISHES.items():
            rig = new_rig(eos=(EOS,), num_words=5)
            rig.add(f"{name} {p}", prompt, NUM_TOKENS, **{"temperature": 0.0, "seed": 100 + p, **wish})
            rig.run()
            said[f"{name} {p}"] = everything_of(rig, f"{name} {p}")
    return said


def everything_of(rig: Any, name: str) -> tuple[Any, ...]:
    events = rig.events[name]
    return (
        rig.tokens(name),
        [scores for event in events for scores in event.logprobs],
        [scores for event in events for scores in event.prompt_logprobs],
        rig.last(name).finish_reason,
    )


@pytest.mark.parametrize("limits", [
    {}, {"max_batch_size": 32, "max_batch_tokens": 64, "num_blocks": 512}, {"max_batch_tokens": 8},
    {"num_blocks": 30, "max_seq_len": 60}, {"num_blocks": 30, "max_seq_len": 60, "prefix_caching": False},
    {"speculate": 4}, {"speculate": 3, "num_blocks": 30, "max_seq_len": 60, "max_batch_tokens": 16},
], ids=str)  # fmt: skip
def test_company_changes_nothing(
    new_rig: Callable[..., Any], alone: dict[str, tuple[Any, ...]], limits: dict[str, Any]
) -> None:
    rig = new_rig(**{"eos": (EOS,), "num_words": 5, "max_queue": 64, **limits})
    for _ in range(2):  # the second time, prompts are in the prefix cache
        names = add_all(rig)
        rig.run(limit=20_000)
        for name in names:
            assert everything_of(rig, name) == alone[name], name
        rig.events.clear()
    if limits.get("num_blocks") == 30:
        assert rig.core.stats().num_preemptions > 0
    assert rig.all_blocks_free


def test_wishes_are_kept(alone: dict[str, tuple[Any, ...]]) -> None:
    for p, prompt in enumerate(PROMPTS):
        few = alone[f"few {p}"][0]
        assert set(few) <= {1, 2, 3, EOS} and len(few) >= 20 and EOS not in few[:20]
        biased = alone[f"biased {p}"][0]
        assert 5 not in biased and not {(3, 4), (4, 4)} & set(pairwise(biased))
        assert set(biased) & {3, 4}
        assert (1, 2) not in set(pairwise(few))
        scores = alone[f"scored {p}"]
        assert [item.token_id for item in scores[2]] == prompt[1:] and all(len(item.top) == 2 for item in scores[2])
        assert len(scores[1]) == len(scores[0])


def test_seeds_decide_and_nothing_else(new_rig: Callable[..., Any]) -> None:
    rig = new_rig(num_words=5)
    for seed in range(6):
        rig.add(f"a{seed}", [1, 2], 20, temperature=4.0, seed=seed)
        rig.add(f"b{seed}", [1, 2], 20, temperature=4.0, seed=seed)
    rig.run()
    texts = [rig.tokens(f"a{seed}") for seed in range(6)]
    assert texts == [rig.tokens(f"b{seed}") for seed in range(6)] and len(set(texts)) == 6


def test_a_request_that_leaves_itself_no_token_fails_alone(new_rig: Callable[..., Any]) -> None:
    rig = new_rig(eos=(EOS,))
    rig.add("stuck", [1], 5, allowed_token_ids=(EOS,), min_tokens=1)
    rig.add("stuck later", [1], 5, allowed_token_ids=(3, 4), bad_words=((3, 3), (3, 4), (4, 3), (4, 4)))
    rig.add("other", [2], 5)
    rig.run()
    for name, said in (("stuck", 0), ("stuck later", 1)):
        error = rig.last(name).error
        assert error is not None and (error.code, error.status) == ("no_token_allowed", 400)
        assert len(rig.tokens(name)) == said
    assert rig.last("other").finish_reason == "length"
    assert rig.all_blocks_free


def test_each_token_is_asked_for_once(new_rig: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain greedy step is one look for the largest, over all rows at once, and nothing else."""
    rig = new_rig()
    looks: list[int] = []
    argmax = rig.executor.argmax_rows
    monkeypatch.setattr(rig.executor, "argmax_rows", lambda logits: looks.append(len(logits)) or argmax(logits))
    for name in ("draw", "steer", "score"):
        monkeypatch.setattr(f"aie_engine.sampling.sampler.{name}", lambda *_: pytest.fail("no row has asked for it"))
    for name in "abc":
        rig.add(name, [ord(name)], 10)
    rig.run()
    assert looks == [3] * 10


def test_conflicts_with_the_vocabulary_are_refused_before_they_reach_a_step(
    new_rig: Callable[..., Any], request_for: Callable[..., GenerateRequest]
) -> None:
    from aie_engine.registry import check_request
    from aie_tensor import InvalidInputError

    info = new_rig().parts.info
    wishes: Sequence[dict[str, Any]] = (
        {"logit_bias": ((97, 1.0),)}, {"bad_words": ((1, 97),)}, {"allowed_token_ids": (97,)},
    )  # fmt: skip
    for wish in wishes:
        with pytest.raises(InvalidInputError, match="96") as caught:
            check_request(request_for("r", [1], 5, **wish), info)
        assert caught.value.param == next(iter(wish))

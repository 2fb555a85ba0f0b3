"""What `aie serve` makes of its settings for memory."""

from pathlib import Path

import pytest

from aie.assemble import engine_config
from aie.settings import load_settings
from aie_engine import InvalidInputError


def config(share=1, name="org/tiny", **flags):
    return engine_config(load_settings(flags, environ={}), Path("model.gguf"), name, share=share)


def test_off_by_default():
    made = config()
    assert (made.memdebug, made.memdebug_sample, made.memory_log) == (False, 1, None)


def test_all_of_it_reaches_the_engine():
    made = config(memdebug=True, memdebug_sample=64, memory_log="logs/m.jsonl")
    assert (made.memdebug, made.memdebug_sample, made.memory_log) == (True, 64, Path("logs/m.jsonl"))


def test_several_models_do_not_share_a_file():
    made = config(memdebug=True, memory_log="logs/m.jsonl", share=2)
    assert made.memory_log == Path("logs/m.org-tiny.jsonl")


def test_a_log_of_nothing_is_refused():
    with pytest.raises(InvalidInputError, match="--memdebug") as caught:
        config(memory_log="m.jsonl")
    assert caught.value.param == "memory_log"

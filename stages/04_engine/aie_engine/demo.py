"""The demonstration of stage 4. Every figure is measured while it prints."""

import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from aie_engine.config import EngineConfig
from aie_engine.demo_model import demo_model
from aie_engine.demo_predictors import show_missing_event, show_predictors, show_staging
from aie_engine.local import LocalEngine
from aie_engine.params import SamplingParams
from aie_engine.requests import GenerateRequest
from aie_engine.text import TextModel, load_text_model

__all__ = ["QUESTIONS", "Answer", "run", "show_batch", "show_cancellation"]

QUESTIONS = (
    "What is the capital of France?",
    "Name the three primary colours.",
    "How do I boil an egg?",
    "What is the opposite of hot?",
    "Who walked on the moon first?",
    "Why is the sky blue?",
    "Tell me a story about a small robot.",
    "What do bees make?",
)
_COLUMNS = 48  # of the timeline


@dataclass
class Answer:
    """What one reader saw of its stream."""

    name: str
    num_prompt: int
    submitted_s: float
    arrivals: list[tuple[float, int]] = field(default_factory=list)  # when, and how many tokens
    token_ids: list[int] = field(default_factory=list)

    @property
    def first_token_s(self) -> float:
        return self.arrivals[0][0] - self.submitted_s


def show_batch(engine: LocalEngine, text: TextModel, num_tokens: int) -> None:
    """The same eight requests one after another, then at once."""
    prompts = [_prompt(text, question) for question in QUESTIONS]
    print(
        f"1. Eight requests of up to {num_tokens} tokens, one after another and at once (greedy, on the same engine)\n"
    )
    began = time.perf_counter()
    alone = [_read(engine, f"alone {index}", prompt, num_tokens) for index, prompt in enumerate(prompts)]
    alone_s = time.perf_counter() - began

    before = engine.stats()
    together: list[Answer] = []
    began = time.perf_counter()
    readers = [
        threading.Thread(target=lambda i=i, p=p: together.append(_read(engine, f"r{i}", p, num_tokens)))
        for i, p in enumerate(prompts)
    ]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    together_s = time.perf_counter() - began
    after = engine.stats()
    together.sort(key=lambda answer: answer.name)

    _print_timeline(together, began, together_s)
    print("   request   first token   tokens   text")
    for answer in together:
        snippet = text.tokenizer.decode(answer.token_ids).replace("\n", " ")[:62]
        print(f"   {answer.name:<9} {answer.first_token_s * 1e3:8.0f} ms   {len(answer.token_ids):>6}   {snippet}")
    total = sum(len(answer.token_ids) for answer in together)
    steps = after.steps - before.steps
    same = sum(a.token_ids == b.token_ids for a, b in zip(alone, together, strict=True))
    print(f"\n   one after another  {total / alone_s:7.1f} tokens/s   {alone_s:6.2f} s")
    print(f"   all at once        {total / together_s:7.1f} tokens/s   {together_s:6.2f} s   in {steps} steps, "
          f"{(after.batch_size_sum - before.batch_size_sum) / steps:.1f} requests per step")  # fmt: skip
    print(f"   faster by          {alone_s / together_s:7.1f} ×; the same text, token by token: {same} of {len(alone)}")
    python_s = (after.step_time_s - before.step_time_s) - (after.execute_time_s - before.execute_time_s)
    print(f"   besides the model  {python_s / steps * 1e3:7.2f} ms per step: scheduling, batch, sampling, events\n")


def show_cancellation(engine: LocalEngine, text: TextModel) -> None:
    """Six long requests, of which four are cancelled: their blocks are free within one step."""
    prompt = _prompt(text, QUESTIONS[0])
    long = SamplingParams(temperature=0.0, max_tokens=engine.info.max_seq_len - len(prompt), ignore_eos=True)
    streams = [engine.submit(GenerateRequest(f"long {index}", prompt, long)) for index in range(6)]
    for stream in streams:
        stream.get()
    before = engine.stats()
    for stream in streams[:4]:
        stream.cancel()
    after = engine.stats()
    print("2. Six requests run; four are cancelled\n")
    print("                     running   KV blocks in use   step")
    for label, stats in (("before", before), ("after", after)):
        used = engine.info.num_kv_blocks - stats.num_free_blocks
        print(f"   {label:<15} {stats.num_running:>10} {used:>18} {stats.steps:>6}")
    between = after.steps - before.steps
    print(f"\n   Steps between the two looks, those before the cancellation arrived included: {between}.")
    for stream in streams:
        stream.cancel()
        for _ in stream:
            pass
    done = engine.stats()
    print(f"   After cancelling the rest: {done.num_running} running, {done.kv_usage:.0%} of the KV blocks in use.\n")


def run(num_tokens: int) -> None:
    """Two parts on one engine, three on streams and predictors."""
    with tempfile.TemporaryDirectory() as folder:
        path, description = demo_model(Path(folder))
        print(f"Stage 4, aie_engine: batches into results\n\n   model: {description}")
        engine = LocalEngine(EngineConfig(path, max_batch_size=8, kv_memory_bytes=256 << 20), report=_report)
        try:
            info = engine.info
            print(f"   {info.kernels} kernels, {info.num_threads} threads, {info.num_kv_blocks} KV blocks of "
                  f"{info.block_size} tokens, ready in {info.load_s:.2f} s\n")  # fmt: skip
            text = load_text_model(path)
            show_batch(engine, text, num_tokens)
            show_cancellation(engine, text)
        finally:
            engine.close()
    show_staging(8, _report)
    show_missing_event()
    show_predictors(1000, _report)


def _report(line: str) -> None:
    print(f"   {line}", flush=True)


def _prompt(text: TextModel, question: str) -> tuple[int, ...]:
    if text.chat_template is not None:
        question = text.chat_template.render([{"role": "user", "content": question}])
    return tuple(text.tokenizer.encode(question))


def _read(engine: LocalEngine, name: str, prompt: tuple[int, ...], num_tokens: int) -> Answer:
    sampling = SamplingParams(temperature=0.0, max_tokens=num_tokens)
    answer = Answer(name, len(prompt), time.perf_counter())
    for event in engine.submit(GenerateRequest(name, prompt, sampling)):
        answer.arrivals.append((time.perf_counter(), len(event.token_ids)))
        answer.token_ids += event.token_ids
    return answer


def _print_timeline(answers: list[Answer], began_s: float, elapsed_s: float) -> None:
    """One line per request, one column per slice of time: how many tokens arrived in it."""
    slice_s = elapsed_s / _COLUMNS
    print(f"   Tokens as they stream in, all at once; a column is {slice_s * 1e3:.0f} ms:\n")
    for answer in answers:
        counts = [0] * _COLUMNS
        for at_s, num_tokens in answer.arrivals:
            counts[min(int((at_s - began_s) / slice_s), _COLUMNS - 1)] += num_tokens
        print(f"   {answer.name:<9} " + "".join("·" if count == 0 else str(min(count, 9)) for count in counts))
    print()

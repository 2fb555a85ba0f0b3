"""`aie memdebug`: traffic with the ledger on, then what is still held, and by which line.

The traffic is meant to be nasty: a third of the requests end by length, a third are cancelled at some token, a third
are refused. Afterwards everything that a request held must be back; what is not, is a leak with a call stack.
"""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aie.console import format_bytes, note, write_json
from aie_engine import AieError, GenerateRequest, InvalidInputError, SamplingParams

if TYPE_CHECKING:
    from aie.local import LocalModel

__all__ = ["leaks", "memdebug", "register"]

_ENDINGS = ("finish", "cancel", "refuse")


def memdebug(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="Alias, file or folder. [the default model]")
    ] = None,
    requests: Annotated[int, typer.Option(help="How many requests to send.")] = 24,
    seed: Annotated[int, typer.Option(help="Same seed, same traffic.")] = 0,
    url: Annotated[str | None, typer.Option(help="Not there yet: look into a live server.")] = None,
    drill: Annotated[str | None, typer.Option(help="Not there yet: plant a leak and find it.")] = None,
    kernels: Annotated[str | None, typer.Option(help="native, numpy or auto.")] = None,
    json_path: Annotated[Path | None, typer.Option("--json", help="Also write the report to this file.")] = None,
) -> None:
    """Run traffic with the leak ledger on and show what is still held, with call stacks. Exit code 1 on a leak."""
    from aie.local import local_model

    for flag, value in (("--url", url), ("--drill", drill)):
        if value is not None:
            raise InvalidInputError(f"{flag} is not there yet; `aie memdebug` runs its own traffic in this process.")
    if requests < 1:
        raise InvalidInputError("--requests must be at least 1.", param="requests")
    with local_model(model, kernels=kernels, threads=None, max_batch_size=8, memdebug=True) as local:
        _traffic(local, 3, seed + 1)  # what is allocated once, at first use, is no leak
        before = local.engine.outstanding()
        endings = _traffic(local, requests, seed)
        after = local.engine.outstanding()
        stats = local.engine.stats()
    note(" · ".join(f"{count} {name}" for name, count in sorted(endings.items())))
    grown = leaks(before, after)
    held = sum(_size(entry) for entry in after)
    print(f"Held after {requests} requests: {len(after)} allocations, {format_bytes(held)}; {len(before)} before them.")
    print(f"KV blocks in use: {stats.kv_usage:.0%}; running {stats.num_running}, waiting {stats.num_waiting}.")
    _print_groups("Held for the engine's life (not leaks)", _groups(before))
    if grown:
        _print_groups("LEAKED", grown)
    else:
        print("No leak: everything that the requests held has been given back.")
    if json_path is not None:
        write_json(
            json_path,
            {
                "requests": requests,
                "endings": endings,
                "held_bytes": held,
                "outstanding": list(after),
                "leaks": [{"owner": o, "stack": list(s), "count": c, "bytes": b} for (o, s), (c, b) in grown.items()],
            },
        )
    if grown or stats.num_running or stats.num_waiting:
        raise typer.Exit(1)


Groups = dict[tuple[str, tuple[str, ...]], tuple[int, int]]  # (owner kind, call stack) → (count, bytes)


def leaks(before: Sequence[Mapping[str, object]], after: Sequence[Mapping[str, object]]) -> Groups:
    """The groups of allocations, by owner and call stack, that hold more than they did."""
    old, grown = _groups(before), {}
    for key, (count, size) in _groups(after).items():
        old_count, old_size = old.get(key, (0, 0))
        if count > old_count or size > old_size:
            grown[key] = (count - old_count, size - old_size)
    return grown


def _groups(entries: Sequence[Mapping[str, object]]) -> Groups:
    groups: Groups = {}
    for entry in entries:
        stack = entry.get("stack") or ()
        assert isinstance(stack, list | tuple), stack
        # Owners of requests carry the request's id; a leak is one place in the code, whatever request met it.
        owner = str(entry.get("owner", "")).partition(" ")[0]
        key = (owner, tuple(str(frame) for frame in stack))
        count, size = groups.get(key, (0, 0))
        groups[key] = (count + 1, size + _size(entry))
    return groups


def _size(entry: Mapping[str, object]) -> int:
    size = entry.get("nbytes", 0)
    assert isinstance(size, int), entry
    return size


def _print_groups(title: str, groups: Groups) -> None:
    if not groups:
        return
    print(f"\n{title}:")
    for (owner, stack), (count, size) in sorted(groups.items(), key=lambda item: -item[1][1]):
        print(f"  {format_bytes(size):>12} in {count} × {owner or '(no owner)'}")
        for frame in stack[:6]:
            print(f"               {frame}")


def _traffic(local: "LocalModel", count: int, seed: int) -> Counter[str]:
    """Sends `count` requests, up to eight at once, and waits for the last one. Gives how each ended."""
    draw = random.Random(seed)
    endings: Counter[str] = Counter()
    vocab = local.engine.info.vocab_size
    for first in range(0, count, 8):
        streams = []
        for number in range(first, min(count, first + 8)):
            ending = _ENDINGS[number % 3]
            length = draw.randint(1, 60) if ending != "refuse" else local.engine.info.max_seq_len + 1
            prompt = tuple(draw.randrange(vocab) for _ in range(length))
            sampling = SamplingParams(temperature=0.0, max_tokens=draw.randint(1, 24), ignore_eos=True)
            try:
                streams.append(
                    (ending, local.engine.submit(GenerateRequest(f"memdebug-{seed}-{number}", prompt, sampling)))
                )
            except AieError as error:
                endings[f"refused ({error.code})"] += 1
        for ending, stream in streams:
            last = None
            if ending == "cancel":
                last = stream.get().finish_reason  # set when it was faster than we
                stream.cancel()
            while not stream.finished:
                last = stream.get().finish_reason
            endings[str(last)] += 1
    return endings


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("memdebug", short_help="Run unkind traffic and look for leaks.")(memdebug)

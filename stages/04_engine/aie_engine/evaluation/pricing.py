"""The price of each precision of one model: bytes, time of a decode step, and distance from float32 on built-in text.

Times are ratios. A step in each precision and one in the file's own take turns, and the medians are compared, so that a
busy machine slows down both. With NumPy kernels all precisions are expanded to float32 and take the same time.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from aie_engine.config import KernelChoice
from aie_engine.evaluation.comparing import Tally, compare_logits
from aie_engine.evaluation.running import TextRunner
from aie_engine.evaluation.texts import builtin_texts
from aie_engine.executors import KernelKind
from aie_loader import PRECISIONS, Model, Precision
from aie_tensor import EnvironmentLacksError, InvalidInputError
from aie_tensor.ops import KV_DTYPES, Activations, KVDtype

__all__ = ["Price", "price_precisions"]

Logits = npt.NDArray[np.float32]

_DECODE_POSITION = 128
_WARM_UP, _ROUNDS = 3, 41


@dataclass(frozen=True, slots=True)
class Price:
    """One line of the table."""

    precision: str  # "file" for the weights as they are stored; "… a8": with activations in eight bits, too;
    # "… kv16", "… kv8": with keys and values in as many
    weight_bytes: int
    bits_per_weight: float
    step_s: float  # median of a decode step, one sequence
    step_quartiles_s: tuple[float, float]  # half of the steps lie between; far apart on a busy machine
    step_share: float  # of the file's own, measured in turns with it
    mean_kl: float  # nats, against fp32
    max_kl: float
    agreement: float  # share of positions with the same likeliest token as fp32
    perplexity: float
    num_positions: int
    kernels: KernelKind
    num_threads: int
    num_rounds: int  # steps of each kind that the medians are of


def price_precisions(
    model: Model,
    chosen: Sequence[Precision] | None = None,
    *,
    kernels: KernelChoice = "auto",
    num_threads: int = 1,
    rounds: int = _ROUNDS,
    max_tokens: int | None = None,
    activations: Activations = "fp32",
    kv_dtype: KVDtype = "fp32",
    report: Callable[[str], None] = lambda line: None,
    arrived: Callable[[Price], None] = lambda price: None,
) -> list[Price]:
    """The file's own weights, then each of `chosen` (all where None is given), each against float32.

    Two models are in memory at a time. The reference logits go to a temporary file; EnvironmentLacksError where the
    disk is full. max_tokens: of each text, all where None is given. activations: with int8, each that has such products
    is priced with them, too. kv_dtype: with fp16 or int8, each is priced with such a cache, too. report: takes lines
    for a person; arrived: each price as it is known.
    """
    pricing = _Pricing(model, kernels, num_threads, rounds, max_tokens, report, arrived)
    return pricing.run(list(PRECISIONS.values()) if chosen is None else chosen, activations, kv_dtype)


class _Pricing:
    def __init__(
        self,
        model: Model,
        kernels: KernelChoice,
        num_threads: int,
        rounds: int,
        max_tokens: int | None,
        report: Callable[[str], None],
        arrived: Callable[[Price], None],
    ) -> None:
        longest = min(model.config.max_position_embeddings, max_tokens or model.config.max_position_embeddings)
        encode = model.tokenizer.encode
        encoded = [encode(text, add_special_tokens=True)[:longest] for text in builtin_texts().values()]
        self._texts = [ids for ids in encoded if len(ids) > 1]
        if not self._texts:
            raise InvalidInputError(f"The tokenizer of {model.name} makes no tokens of English text.")
        self._model, self._kernels, self._num_threads = model, kernels, num_threads
        self._rounds, self._report, self._arrived = rounds, report, arrived
        self._num_weights = sum(int(np.prod(matrix.shape)) for matrix in model.graph.weights.values())
        self._max_len = max(len(ids) for ids in self._texts)

    def run(self, chosen: Sequence[Precision], activations: Activations, kv_dtype: KVDtype) -> list[Price]:
        own = self._open(None)
        try:
            with tempfile.TemporaryFile() as file:
                kept = _Kept(file)
                prices = self._with_reference(own, chosen, kept)
                if activations == "int8":
                    prices += [price for each in (None, *chosen) if (price := self._in_eight_bits(own, each, kept))]
                if kv_dtype != "fp32":
                    prices += [self._with_cache_of(kv_dtype, own, each, kept) for each in (None, *chosen)]
        except OSError as error:
            raise EnvironmentLacksError(f"The logits of the reference cannot be kept in a file: {error}") from error
        finally:
            own.close()
        return prices

    def _with_reference(self, own: TextRunner, chosen: Sequence[Precision], kept: "_Kept") -> list[Price]:
        reference = self._open(PRECISIONS["fp32"])
        try:
            for logits in self._all_logits(reference):
                kept.append(logits)
            prices = [self._price("file", own, own, kept)]
            if PRECISIONS["fp32"] in chosen:
                prices.append(self._price("fp32", own, reference, kept))
        finally:
            reference.close()
        for precision in chosen:
            if precision.name == "fp32":
                continue
            runner = self._open(precision)
            try:
                prices.append(self._price(precision.name, own, runner, kept))
            finally:
                runner.close()
        return prices

    def _in_eight_bits(self, own: TextRunner, precision: Precision | None, kept: "_Kept") -> Price | None:
        try:
            runner = self._open(precision, "int8")
        except InvalidInputError as error:  # a type of weights without such a product, which the message names
            self._report(str(error))
            return None
        try:
            return self._price(f"{precision.name if precision else 'file'} a8", own, runner, kept)
        finally:
            runner.close()

    def _with_cache_of(self, kv_dtype: KVDtype, own: TextRunner, precision: Precision | None, kept: "_Kept") -> Price:
        runner = self._open(precision, kv_dtype=kv_dtype)
        try:
            name = f"{precision.name if precision else 'file'} kv{8 * np.dtype(KV_DTYPES[kv_dtype]).itemsize}"
            return self._price(name, own, runner, kept)
        finally:
            runner.close()

    def _price(self, name: str, own: TextRunner, runner: TextRunner, kept: "_Kept") -> Price:
        tally = Tally()
        targets = self._all_targets()
        for ours, theirs, target in zip(self._all_logits(runner), kept, targets, strict=True):
            tally.add(compare_logits(theirs, ours, np.asarray(target)))
        own_s, steps = self._alternate(own, runner)
        low_s, step_s, high_s = quantiles(steps, n=4) if len(steps) > 1 else 3 * steps
        price = Price(
            precision=name,
            weight_bytes=runner.weight_bytes,
            bits_per_weight=8 * runner.weight_bytes / self._num_weights,
            step_s=step_s,
            step_quartiles_s=(low_s, high_s),
            step_share=1.0 if runner is own else step_s / own_s,
            mean_kl=tally.mean_kl,
            max_kl=tally.max_kl,
            agreement=tally.agreement,
            perplexity=tally.perplexity,
            num_positions=tally.num_positions,
            kernels=runner.kernels,
            num_threads=self._num_threads,
            num_rounds=self._rounds,
        )
        self._arrived(price)
        return price

    def _open(
        self, precision: Precision | None, activations: Activations = "fp32", kv_dtype: KVDtype = "fp32"
    ) -> TextRunner:
        return TextRunner(
            self._model,
            precision,
            max_len=self._max_len,
            kernels=self._kernels,
            num_threads=self._num_threads,
            activations=activations,
            kv_dtype=kv_dtype,
            report=self._report,
        )

    def _all_logits(self, runner: TextRunner) -> Iterator[Logits]:
        for ids in self._texts:
            yield from runner.logits(ids[:-1])

    def _all_targets(self) -> Iterator[Sequence[int]]:
        """The token after each of those whose logits `_all_logits` gives."""
        for ids in self._texts:
            yield from TextRunner.pieces(ids[1:])

    def _alternate(self, own: TextRunner, runner: TextRunner) -> tuple[float, list[float]]:
        """The median of a decode step of `own`, and all of `runner`'s, in turns; who goes first alternates, too."""
        token, position = self._texts[0][0], min(_DECODE_POSITION, self._max_len - 1)
        own_s: list[float] = []
        runner_s: list[float] = []
        for turn in range(_WARM_UP + self._rounds):
            both = [(own, own_s), (runner, runner_s)]
            for which, seconds in both if turn % 2 else both[::-1]:
                seconds.append(which.decode_seconds(token, position))
        return median(own_s[_WARM_UP:]), runner_s[_WARM_UP:]


class _Kept:
    """Arrays of float32 in a file, read back in the order in which they were appended, as often as wanted."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._shapes: list[tuple[int, ...]] = []

    def append(self, array: Logits) -> None:
        self._file.write(np.ascontiguousarray(array).data)
        self._shapes.append(array.shape)

    def __iter__(self) -> Iterator[Logits]:
        self._file.seek(0)
        for shape in self._shapes:
            raw = self._file.read(4 * int(np.prod(shape)))
            yield np.frombuffer(raw, dtype=np.float32).reshape(shape)

"""The files that a load test takes its traffic from, read before anything is started or sent."""

from dataclasses import dataclass

from aie.bench.lengths_file import Pairs, read_lengths
from aie.bench.options import BenchOptions
from aie.bench.trace import Trace, read_trace

__all__ = ["Sources"]


@dataclass(frozen=True, slots=True)
class Sources:
    """What `--trace` and `--lengths file:PATH` hold."""

    trace: Trace | None = None
    pairs: Pairs = ()

    @classmethod
    def of(cls, options: BenchOptions) -> "Sources":
        """Raises `InvalidInputError` for a file that is not what it should be."""
        return cls(
            None if options.trace is None else read_trace(options.trace, options.cut),
            () if options.pairs_path is None else read_lengths(options.pairs_path),
        )

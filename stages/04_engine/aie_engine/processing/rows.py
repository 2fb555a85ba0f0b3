"""Steps for rows of a table, all rows at once: float64 [rows, columns] in, the same out."""

import math
from typing import Annotated, Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from aie_tensor import InvalidInputError

__all__ = ["RowStep"]

Table = npt.NDArray[np.float64]
Columns = Annotated[tuple[float, ...], msgspec.Meta(min_length=1)]


class _Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="step"):
    """`step = "…"` in the file names the class."""


class Fill(_Step, tag="fill", frozen=True):
    """A value for what is missing (null in JSON, NaN), one for all columns or one for each. Without this step, missing
    values are refused."""

    with_: Columns = msgspec.field(name="with")

    def __post_init__(self) -> None:
        if not all(map(math.isfinite, self.with_)):
            raise ValueError("with must hold finite numbers")

    def __call__(self, table: Table) -> Table:
        return np.where(np.isnan(table), _by_column(self.with_, table, "fill"), table)


class Standardise(_Step, tag="standardise", frozen=True):
    """Less the column's mean, divided by its standard deviation."""

    mean: Columns
    std: Columns

    def __post_init__(self) -> None:
        is_fit = all(map(math.isfinite, self.mean)) and all(0 < std < math.inf for std in self.std)
        if len(self.mean) != len(self.std) or not is_fit:
            raise ValueError("mean and std must have as many finite numbers, those of std above 0")

    def __call__(self, table: Table) -> Table:
        return (table - _by_column(self.mean, table, "standardise")) / _by_column(self.std, table, "standardise")


class MinMax(_Step, tag="min_max", frozen=True):
    """The column's range low…high becomes 0…1; beyond: cut off, or left as it comes out."""

    low: Columns
    high: Columns
    beyond: Literal["cut", "keep"] = "keep"

    def __post_init__(self) -> None:
        if len(self.low) != len(self.high) or not all(
            -math.inf < low < high < math.inf for low, high in zip(self.low, self.high, strict=True)
        ):
            raise ValueError("low and high must have as many finite numbers, each low below its high")

    def __call__(self, table: Table) -> Table:
        low, high = (_by_column(values, table, "min_max") for values in (self.low, self.high))
        scaled = (table - low) / (high - low)
        return scaled.clip(0, 1) if self.beyond == "cut" else scaled


RowStep: TypeAlias = Fill | Standardise | MinMax


def _by_column(values: tuple[float, ...], table: Table, step: str) -> Table:
    if len(values) not in (1, table.shape[1]):
        raise InvalidInputError(f"{step} has {len(values)} values for rows of {table.shape[1]} columns")
    return np.asarray(values, np.float64)

"""GGUF's numbers for element types: which we read, and the names of those we do not."""

from aie_tensor import DType

__all__ = ["TYPE_NUMBERS", "UNSUPPORTED_TYPES", "supported_type"]

TYPE_NUMBERS: dict[DType, int] = {
    DType.F32: 0, DType.F16: 1, DType.Q4_0: 2, DType.Q4_1: 3, DType.Q5_0: 6, DType.Q5_1: 7, DType.Q8_0: 8,
    DType.Q2_K: 10, DType.Q3_K: 11, DType.Q4_K: 12, DType.Q5_K: 13, DType.Q6_K: 14,
    DType.I8: 24, DType.I16: 25, DType.I32: 26, DType.I64: 27, DType.F64: 28, DType.BF16: 30,
}  # fmt: skip

# So that an error says "IQ4_NL" and not "type 20".
UNSUPPORTED_TYPES = {
    9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S",
    22: "IQ2_S", 23: "IQ4_XS", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0",
}  # fmt: skip

_BY_NUMBER = {number: dtype for dtype, number in TYPE_NUMBERS.items()}


def supported_type(number: int) -> DType | None:
    """The element type that `number` stands for; None where it is unknown or not read."""
    return _BY_NUMBER.get(number)

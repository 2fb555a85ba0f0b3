"""Snapshots and events in the formats of other people's viewers."""

from aie_tensor.memdebug.exports.collapsed import collapsed_stacks
from aie_tensor.memdebug.exports.perfetto import perfetto
from aie_tensor.memdebug.exports.viewer import memory_viz

__all__ = ["collapsed_stacks", "memory_viz", "perfetto"]

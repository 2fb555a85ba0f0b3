"""A picture of the first steps: one row per request, one column per step."""

from aie_scheduler.plan import StepPlan

__all__ = ["Timeline"]


class Timeline:
    """Collects plans (give `see` to `simulate(on_step=…)`) and draws them.

    A number is a chunk of a prompt, `d` one decoded token, `!` a preemption, `.` a step without the request between its
    first and its last.
    """

    def __init__(self) -> None:
        self._rows: dict[str, dict[int, str]] = {}
        self._num_steps = 0

    def see(self, now: float, plan: StepPlan) -> None:
        """Add one step."""
        for chunk in plan.chunks:
            mark = "d" if chunk.num_tokens == 1 else str(chunk.num_tokens)
            self._rows.setdefault(chunk.request_id, {})[self._num_steps] = mark
        for preemption in plan.preempted:
            self._rows[preemption.request_id][self._num_steps] = "!"
        self._num_steps += 1

    def lines(self, width: int = 3) -> list[str]:
        """The picture, line by line."""
        lines = ["step   " + "".join(f"{step:>{width}}" for step in range(self._num_steps))]
        for request_id, marks in self._rows.items():
            first, last = min(marks), max(marks)
            cells = (marks.get(step, "." if first < step < last else "") for step in range(self._num_steps))
            lines.append(f"{request_id:<7}" + "".join(f"{cell:>{width}}" for cell in cells).rstrip())
        return lines

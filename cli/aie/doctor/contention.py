"""Who else wants the cores: what is measured while others work is theirs as much as the server's."""

from aie.doctor.finding import Finding
from aie.doctor.measured import Neighbours

__all__ = ["are_in_the_way", "judge_neighbours", "who_was_in_the_way"]

WHAT = "other programs"
_OTHERS = 0.15  # of all cores
_STOLEN = 0.03  # of all cores
_THROTTLED = 0.05  # of the time


def are_in_the_way(seen: Neighbours) -> bool:
    """Whether so much was taken that a figure may be due to that."""
    return bool(who_was_in_the_way(seen))


def who_was_in_the_way(seen: Neighbours) -> list[str]:
    """In words, each with its figure."""
    found = []
    if seen.others is not None and seen.others > _OTHERS * seen.cores:
        found.append(f"other programs used {seen.others:.1f} of {seen.cores} cores")
    elif seen.others is None and seen.load is not None and seen.load > 1.5 * seen.cores:
        found.append(f"the load average was {seen.load:.1f} on {seen.cores} cores")
    if seen.stolen is not None and seen.stolen > _STOLEN * seen.cores:
        found.append(f"the host took {seen.stolen:.1f} cores away (steal)")
    if seen.throttled is not None and seen.throttled > _THROTTLED:
        found.append(f"the container's CPU quota stopped it for {seen.throttled:.0%} of the time")
    if seen.swapped_pages:
        found.append(f"{seen.swapped_pages} pages were read back from swap")
    return found


def judge_neighbours(seen: Neighbours) -> Finding:
    """Of the whole run. A note: the other verdicts are to be read with it."""
    figures = {
        "cores": seen.cores, "server": seen.server, "client": seen.client, "others": seen.others, "stolen": seen.stolen,
        "throttled": seen.throttled, "load": seen.load, "swapped_pages": seen.swapped_pages,
    }  # fmt: skip
    found = who_was_in_the_way(seen)
    if found:
        return Finding(
            WHAT,
            "note",
            f"while this was measured {', '.join(found)}; times and throughput are worse for it",
            "stop them, or give the server cores of its own (taskset -c, docker --cpuset-cpus), and measure again",
            figures,
        )
    used = "" if seen.server is None else f"the server used {seen.server:.1f} of {seen.cores} cores, this program "
    used = used or "this program used "
    others = "" if seen.others is None else f", others {seen.others:.1f}"
    return Finding(WHAT, "ok", f"{used}{seen.client:.1f}{others}", figures=figures)

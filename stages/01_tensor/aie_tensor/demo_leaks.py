"""The stage's demonstration, part 6: four classic leaks, found. Run by `__main__`."""

import textwrap

from aie_tensor.memdebug.drills import DRILLS, run_clean, run_drill

__all__ = ["show_leaks"]

NUM_REQUESTS = 200


def show_leaks() -> None:
    """Run the four drills and the engine without a leak, and print what the ledger and the holders say."""
    print("6. Four classic leaks, found\n")
    print(
        f"   A scratch engine serves {NUM_REQUESTS} requests, some cancelled and some refused. Each time one leak is\n"
        "   planted. Three snapshots are taken; what grew between all of them is a leak, and its call stack and\n"
        "   the chain of references to one of the leaked handles say whose:\n"
    )
    for number, drill in enumerate(DRILLS.values()):
        report = run_drill(drill.name, num_requests=NUM_REQUESTS)
        verdict = "" if report.found else "   (NOT the planted line)"
        print(f"   {'abcd'[number]}) {drill.name}: {drill.title}{verdict}")
        for line in report.lines():
            print(textwrap.fill(line, 108, initial_indent=" " * 6, subsequent_indent=" " * 9))
    clean = run_clean(num_requests=NUM_REQUESTS)
    print(f"   e) no leak planted\n      {clean.lines()[0]}\n")
    print("   `aie memdebug --drill cache` shows one of them in full, and says why Python did not free it.\n")

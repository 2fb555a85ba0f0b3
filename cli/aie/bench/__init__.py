"""`aie bench`: a load test of any OpenAI-compatible server, of models that answer at once, of any HTTP server at all.

Reading order, a line each:

what is sent    workload (prompts), lengths_file and trace (real traffic), arrivals (when), streaming_plan, trace_plan
sending         generator/ (processes that send and time) ← process, fleet (start, hear) ← load (level); client
what is said    statistics and student (what may be said of few samples), slo, steady, keeping_up, timeline, by_step (a
                rate that changes) → report
the server's    server_side: what its own metrics counted meanwhile → server_report; energy: what the machine told
levels          streaming_levels (one after another) → streaming (repeats); find_max (the highest rate that holds) →
                probing (on a real server)
stopping early  saturation (whether a server falls behind) → early_stop (or a promise is lost) → watched; interrupts
other traffic   questions (to models that answer at once), plain_http, mix (parts and shares) → call_traffic (all of
                them as calls) → traffic (made of the options); whole_report: the tables of both
meanwhile       running (values) → dashboard (drawn) → progress (on a terminal or elsewhere)
afterwards      curve and knee, header (where and by what), sections → pages (Markdown, HTML) with svg → outputs (files)
two of them     recorded (a report read back) → compare, compare_search → compare_command

notes has the lines below the tables. Then options (checked as a whole; endpoint_checks), target (the server under test,
started here when no URL is given; uninterrupted), measure, command and routing. engine_alone measures the engine
without a server.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer

__all__ = ["register"]


def register(app: "typer.Typer") -> None:
    """Adds the command. Imported here, so that the generator's processes, which are below this package, start fast."""
    from aie.bench.command import register as add

    add(app)

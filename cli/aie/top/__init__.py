"""`aie top`: a live view of any server of models.

Reading order: prometheus (the text format) → names (what servers call the same thing) → figures (one look, and what
happened between two) → entries, look (asking, and everything that can go wrong) → history, summary (the last half
minute as values) → words, facts, request_table, event_words, picture, screen, explain (as a person reads it) → feed,
listening (what happens in between) → watch (again and again) and command.
"""

from aie.top.command import register

__all__ = ["register"]

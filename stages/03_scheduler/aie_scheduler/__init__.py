"""Stage 03."""

"""Stage 05."""

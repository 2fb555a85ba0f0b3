"""Stage 02."""

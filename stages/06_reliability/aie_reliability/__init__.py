"""Stage 06."""

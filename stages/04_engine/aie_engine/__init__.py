"""Stage 04."""

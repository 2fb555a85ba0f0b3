"""The roof: the `aie` command."""

"""`python -m aie` is the same as `aie`."""

from aie.main import main

main()

"""`python -m aie.bench.generator N`: a process of the load generator, which talks over the socket of that number."""

import sys

from aie.bench.generator.worker import main

main(int(sys.argv[1]))

"""python -m octavo_gpuworker: one worker process."""

import os
import sys

# torch's OpenMP threads must park, not spin, at a barrier: the services share these cores (2 threads beside one busy
# process: 226 ms a step spinning, 51 ms parked). libgomp reads this when torch is loaded, so it stands before the imports.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from octavo.rpc.host import run_service

from octavo_gpuworker.service import setup

if __name__ == "__main__":
    sys.exit(run_service("gpuworker", setup, sys.argv[1:]))

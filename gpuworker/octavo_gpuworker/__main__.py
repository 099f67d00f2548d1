"""python -m octavo_gpuworker: one worker process."""

import sys

from octavo.rpc.host import run_service

from octavo_gpuworker.service import setup

if __name__ == "__main__":
    sys.exit(run_service("gpuworker", setup, sys.argv[1:]))

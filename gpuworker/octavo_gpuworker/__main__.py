"""python -m octavo_gpuworker: one worker process."""

import sys

from octavo.rpc.settings import set_environment_default


def main() -> int:
    """Runs the worker; imports torch only after its threads' manners are set."""
    # torch's OpenMP threads must park, not spin, at a barrier: the services share these cores (2 threads beside one
    # busy process: 226 ms a step spinning, 51 ms parked). libgomp reads this once, when torch is loaded.
    set_environment_default("OMP_WAIT_POLICY", "PASSIVE")
    from octavo.rpc.host import run_service

    from octavo_gpuworker.service import setup

    return run_service("gpuworker", setup, sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())

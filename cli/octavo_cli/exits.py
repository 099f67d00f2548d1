"""Exit codes of the octavo command, the same in every subcommand.

0    done: the answer is complete, the cluster is ready, the cluster drained clean
1    failed: a request failed, a service died, a cluster is there but not ready
2    unusable arguments or settings; the message names the key and the fix
3    a model's file is missing, damaged or not the manifest's (a service's own code, passed on by `up`)
4    no cluster: nothing runs in the run folder, or nothing answers at --url
130  interrupted by Ctrl-C before the answer was complete
"""

from __future__ import annotations

from octavo.client.faults import UNREACHABLE
from octavo.errors import InvalidRequest, OctavoError, Unauthenticated, UnknownModel, UnknownPreload
from octavo.manifest import ManifestError

OK = 0
FAILED = 1
USAGE = 2
MISMATCH = 3
NO_CLUSTER = 4
INTERRUPTED = 130


class NoCluster(OctavoError):
    """Nothing runs where we looked."""

    exit_code = NO_CLUSTER
    default_reason = "no-cluster"


class StartFailed(OctavoError):
    """The cluster did not become ready; `exit_code` is that of the service which died."""

    default_reason = "start-failed"

    exit_code = FAILED

    @classmethod
    def with_code(cls, message: str, code: int) -> StartFailed:
        """The error that ends the command with the dead service's own exit code (a signal counts as failed)."""
        error = cls(message)
        error.exit_code = code if code > 0 else FAILED
        return error


def exit_code(error: OctavoError) -> int:
    """The exit code that stands for an error."""
    known = getattr(error, "exit_code", None)
    if isinstance(known, int):
        return known
    if error.reason == UNREACHABLE:
        return NO_CLUSTER
    usage = ManifestError | InvalidRequest | UnknownModel | UnknownPreload | Unauthenticated
    return USAGE if isinstance(error, usage) else FAILED

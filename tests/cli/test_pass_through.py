"""Commands that hand settings on: a mistyped option is told from a mistyped setting."""

from __future__ import annotations

from typing import Any

import pytest
from octavo.manifest import ManifestError
from octavo_cli.pass_through import refuse_mistyped

OPTIONS = ("--workers", "--roles", "--detach", "--ready-timeout-s")


@pytest.mark.parametrize(
    ("passed", "meant"),
    [
        (["--worker", "2"], "--workers"),
        (["--engine.threads", "2", "--detatch"], "--detach"),
        (["--rolles=a"], "--roles"),
    ],
)
def test_a_mistyped_option_is_refused_with_the_one_that_was_meant(passed: list[str], meant: str) -> None:
    with pytest.raises(ManifestError, match=f"is no option; did you mean {meant}[?]$"):
        refuse_mistyped(passed, OPTIONS)


@pytest.mark.parametrize("word", ["--engine.threads", "--threads", "--role", "--bogus", "--worker-id", "worker"])
def test_settings_and_what_is_like_nothing_are_left_to_who_reads_settings(word: str) -> None:
    refuse_mistyped([word, "2"], ("--workers", "--rolls", "--thread"))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("up", "--worker", "2"), "octavo: --worker is no option; did you mean --workers?\n"),
        (("up", "--bogus"), "octavo: --bogus is not a setting; see docs/operations.md for all keys\n"),
        (("up", "--treads", "2"), "octavo: --treads is not a setting; did you mean 'threads'?\n"),
        (("bench", "engine", "--round", "2"), "octavo: --round is no option; did you mean --rounds?\n"),
    ],
)
def test_the_command_says_it_in_one_line(octavo: Any, words: tuple[str, ...], says: str) -> None:
    done = octavo(*words)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", says)

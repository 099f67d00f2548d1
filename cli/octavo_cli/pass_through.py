"""Commands that hand `--section.field value` on: a word that is nearly one of their own options is no setting gone wrong."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, get_type_hints

from octavo.manifest import Manifest, ManifestError
from typer.core import TyperCommand

PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Any `--section.field value` goes to the services as it is."""
NEAR = 0.8
"""Likeness from which a word counts as an option mistyped (difflib's ratio)."""


class PassThrough(TyperCommand):
    """A command for PASS_THROUGH. Raises ManifestError for an option of its own that is mistyped."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, args)
        refuse_mistyped(ctx.args, [name for param in self.params for name in param.opts if name.startswith("--")])
        return rest


def refuse_mistyped(passed: Sequence[str], options: Sequence[str]) -> None:
    """Raises ManifestError for the first of `passed` that is no setting and nearly one of `options`."""
    settings = {field.name for section in get_type_hints(Manifest).values() for field in fields(section)}
    for word in passed:
        name = word.partition("=")[0]
        if not name.startswith("--") or "." in name or name[2:].replace("-", "_") in settings:
            continue
        if near := difflib.get_close_matches(name, options, n=1, cutoff=NEAR):
            raise ManifestError(f"{name} is no option; did you mean {near[0]}?", field=name[2:])

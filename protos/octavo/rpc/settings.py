"""Reads the manifest from defaults, a YAML file, the environment and flags, and remembers where each value came from.

The only module of Octavo that looks at environment variables. Later sources win: default < file < env < flag.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import sys
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import yaml

from octavo.manifest import Manifest, ManifestError, check_features, check_values

Source = Literal["default", "file", "env", "flag"]
ENV_PREFIX = "OCTAVO_"
MANIFEST_ENV = "OCTAVO_MANIFEST"
LARGEST = sys.float_info.max
SHOWN_CHARS = 100
_EXPONENT = re.compile(r"[-+]?[0-9]+(?:\.[0-9]*)?[eE][-+]?[0-9]{1,3}")
SECRETS = ("deployment.secret", "tenants.keys")
"""No message repeats what these hold."""
FOREIGN_ENV = {"OTEL_EXPORTER_OTLP_ENDPOINT": "observability.otlp_endpoint"}
"""Names of the ecosystem that stand for one of our keys."""


@dataclass(frozen=True, slots=True)
class Setting:
    key: str
    value: Any
    source: Source


@dataclass(frozen=True, slots=True)
class Settings:
    """The effective manifest and the source of every key."""

    manifest: Manifest
    sources: Mapping[str, Source]

    def items(self) -> list[Setting]:
        """Every effective setting, in the manifest's order; secrets are masked."""
        listed = []
        for section, values in asdict(self.manifest).items():
            for name, value in values.items():
                key = f"{section}.{name}"
                shown = _mask(key, value)
                listed.append(Setting(key, shown, self.sources.get(key, "default")))
        return listed


def load_settings(argv: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """The manifest from all four sources.

    `argv` takes `--manifest FILE`, `--section.field VALUE` (or `=VALUE`; dashes and underscores alike) and a field's
    bare name where it is unique (`--max-num-seqs 8`). Raises ManifestError with one line naming the key and the fix.
    """
    types_by_key = field_types()
    flags = _parse_flags(argv, types_by_key)
    path = flags.pop("manifest", None) or environ.get(MANIFEST_ENV)
    values: dict[str, Any] = {}
    sources: dict[str, Source] = {}

    def take(key: str, value: Any, source: Source) -> None:
        values[key] = _convert(key, value, types_by_key[key])
        sources[key] = source

    for key, value in (_read_file(Path(path), types_by_key) if path else {}).items():
        take(key, value, "file")
    for key, text in _read_environ(environ, types_by_key).items():
        take(key, _from_text(text, types_by_key[key]), "env")
    for key, text in flags.items():
        take(key, _from_text(text, types_by_key[key]), "flag")
    manifest = _build(values)
    check_values(manifest)
    check_features(manifest)
    return Settings(manifest, sources)


def field_types() -> dict[str, Any]:
    """`section.field` -> its type, for every setting there is."""
    found: dict[str, Any] = {}
    for section, section_type in get_type_hints(Manifest).items():
        for name, hint in get_type_hints(section_type).items():
            found[f"{section}.{name}"] = hint
    return found


def env_name(key: str) -> str:
    """OCTAVO_ENGINE_MAX_MODEL_LEN for engine.max_model_len."""
    return ENV_PREFIX + key.replace(".", "_").upper()


def to_flags(settings: Mapping[str, Any]) -> list[str]:
    """Flags that give another process these keys."""
    flags = []
    for key, value in settings.items():
        flags += [f"--{key}", value if isinstance(value, str) else json.dumps(value)]
    return flags


def _build(values: Mapping[str, Any]) -> Manifest:
    sections = {}
    for section, section_type in get_type_hints(Manifest).items():
        given = {key.split(".")[1]: value for key, value in values.items() if key.split(".")[0] == section}
        sections[section] = section_type(**given)
    return Manifest(**sections)


def _parse_flags(argv: Sequence[str], known: Mapping[str, Any]) -> dict[str, str]:
    short: dict[str, list[str]] = {}
    for key in known:
        short.setdefault(key.split(".")[1], []).append(key)
    short["model"] = ["model.ref"]
    parsed: dict[str, str] = {}
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            raise ManifestError(f"{word!r} is no flag; settings look like --engine.max_model_len 4096", field=word)
        name, has_value, value = word[2:].partition("=")
        key = name.replace("-", "_")
        if key != "manifest" and key not in known:
            candidates = short.get(key, [])
            if len(candidates) != 1:
                near = (
                    f"several: {', '.join('--' + item for item in candidates)}"
                    if candidates
                    else _nearest(key, [*known, *short])
                )
                raise ManifestError(f"--{name} is not a setting; {near}", field=name)
            key = candidates[0]
        if not has_value:
            if known.get(key) is bool and (not rest or rest[0].startswith("--")):
                value = "true"
            elif rest:
                value = rest.pop(0)
            else:
                raise ManifestError(f"--{name} needs a value", field=name)
        parsed[key] = value
    return parsed


def _read_file(path: Path, known: Mapping[str, Any]) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ManifestError(f"manifest {path}: {error.strerror}; check the path", field="manifest") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ManifestError(f"manifest {path} is not YAML: {' '.join(str(error).split())}", field="manifest") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ManifestError(f"manifest {path}: the top level must be sections, such as `engine:`", field="manifest")
    sections = {key.split(".")[0] for key in known}
    found: dict[str, Any] = {}
    for section, values in content.items():
        if section not in sections:
            raise ManifestError(
                f"manifest {path}: unknown section {section!r}; {_nearest(str(section), sections)}", field=str(section)
            )
        if values is None:
            continue
        if not isinstance(values, dict):
            raise ManifestError(f"manifest {path}: section {section!r} must hold keys and values", field=str(section))
        for name, value in values.items():
            key = f"{section}.{name}"
            if key not in known:
                raise ManifestError(f"manifest {path}: unknown key {key!r}; {_nearest(key, known)}", field=key)
            found[key] = value
    return found


def _read_environ(environ: Mapping[str, str], known: Mapping[str, Any]) -> dict[str, str]:
    names = {env_name(key): key for key in known}
    found = {key: environ[foreign] for foreign, key in FOREIGN_ENV.items() if environ.get(foreign)}
    for name, text in environ.items():
        if not name.startswith(ENV_PREFIX) or name == MANIFEST_ENV:
            continue
        if name not in names:
            raise ManifestError(f"{name} is not a setting; {_nearest(name, names)}", field=name)
        found[names[name]] = text
    return found


def _nearest(word: str, known: Any) -> str:
    close = difflib.get_close_matches(word[:SHOWN_CHARS], list(known), n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else "see docs/operations.md for all keys"


def _from_text(text: str, hint: Any) -> Any:
    """The value that `text` of an environment variable or flag stands for: strings as they are, the rest as YAML."""
    if hint is str or (get_origin(hint) is Literal and all(isinstance(item, str) for item in get_args(hint))):
        return text
    if get_origin(hint) is tuple and not text.lstrip().startswith("["):
        return [_from_yaml(part) for part in text.split(",") if part.strip()]
    return _from_yaml(text)


def _from_yaml(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def _convert(key: str, value: Any, hint: Any) -> Any:
    """`value` as the field's type. Raises ManifestError that names what was expected."""
    field, shown = ".".join(key.split(".")[:2]), _short(value) if key not in SECRETS else "what is given"
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        if value in args and type(value) is type(args[args.index(value)]):
            return value
        choices = ", ".join(str(item) for item in args)
        near = difflib.get_close_matches(str(value)[:SHOWN_CHARS], [str(item) for item in args], n=1)
        raise ManifestError(
            f"{key}: {shown} is unknown; choose from {choices}" + (f" (did you mean {near[0]!r}?)" if near else ""),
            field=field,
        )
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ManifestError(f"{key}: {shown} must be a list; write [A, B]", field=field)
        return tuple(_convert(key, item, args[0]) for item in value)
    if origin is types.UnionType:
        for kind in args[:-1]:
            try:
                return _convert(key, value, kind)
            except ManifestError:
                continue
        return _convert(key, value, args[-1])
    if origin in (dict, typing.Mapping, Mapping) or isinstance(hint, types.GenericAlias):
        if not isinstance(value, dict):
            raise ManifestError(f"{key}: {shown} must be a mapping; write {{NAME: VALUE}}", field=field)
        # the names in tenants.keys, a mapping to str, are secrets: no message repeats them
        return {
            _convert(key, name, args[0]): _convert(key if args[1] is str else f"{key}.{name}", item, args[1])
            for name, item in value.items()
        }
    if hint is float and isinstance(value, str) and _EXPONENT.fullmatch(value):
        value = float(value)  # YAML 1.1 takes 1e6 for a word
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        if not -LARGEST <= value <= LARGEST:  # NaN neither
            raise ManifestError(f"{key}: {shown} must be a finite number", field=field)
        return float(value)
    if hint is int and isinstance(value, int) and not isinstance(value, bool):
        return value
    if hint is bool and isinstance(value, bool):
        return value
    if hint is str and isinstance(value, str | int | float) and not isinstance(value, bool):
        return str(value)
    wanted = getattr(hint, "__name__", str(hint))
    raise ManifestError(f"{key}: {shown} is no {wanted}; give a value of that type", field=field)


def _short(value: Any) -> str:
    """The value in a message of one line."""
    text = repr(value)
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}..."


def set_environment_default(name: str, value: str) -> None:
    """Sets a variable that a native library reads when it is loaded, unless the operator has set it."""
    os.environ.setdefault(name, value)


def _mask(key: str, value: Any) -> Any:
    if key == "deployment.secret":
        return "***"
    if key == "tenants.keys":
        return sorted(set(value.values()))
    if key == "cache.valkey_url" and "@" in value:
        return re.sub(r"//[^@]*@", "//***@", value)
    return value


def manifest_keys() -> list[tuple[str, str, Any]]:
    """(key, environment variable, default) of every setting, for the docs and for `octavo doctor`."""
    defaults = Manifest()
    rows = []
    for section in fields(Manifest):
        for item in fields(getattr(defaults, section.name)):
            key = f"{section.name}.{item.name}"
            rows.append((key, env_name(key), getattr(getattr(defaults, section.name), item.name)))
    return rows

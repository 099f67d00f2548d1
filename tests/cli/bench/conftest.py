"""Makes the stand-in server importable under importmode=importlib."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

if "null_server" not in sys.modules:
    spec = importlib.util.spec_from_file_location("null_server", Path(__file__).with_name("null_server.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["null_server"] = module
    spec.loader.exec_module(module)

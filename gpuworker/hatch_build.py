"""Build hook: compiles the native CPU kernels into the wheel, or beside the sources of an editable install, where a compiler allows it.

Without one the package installs all the same: the worker then builds the library at its first start, or serves with torch,
and `octavo doctor` says why.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NATIVE = Path("octavo_gpuworker") / "native"


class NativeKernels(BuildHookInterface):
    """Runs octavo_gpuworker/native/build.py, which needs nothing but the standard library."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        folder = Path(self.root) / NATIVE
        spec = importlib.util.spec_from_file_location("octavo_native_build", folder / "build.py")
        assert spec is not None and spec.loader is not None
        build = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(build)
        try:
            made = build.build(folder)
        except (build.BuildError, OSError) as error:
            self.app.display_warning(f"without the native CPU kernels: {error}")
            return
        for stale in folder.glob("liboctavo_native-*.so"):
            if stale != made:
                stale.unlink()
        build_data["artifacts"].append(f"{NATIVE}/{made.name}")
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

"""Tensors of a Hugging Face folder: one safetensors file or the shards of an index."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from octavo.artifacts import BadArtifact, ModelFiles
from safetensors import SafetensorError, safe_open
from torch import Tensor

from octavo_gpuworker.kernels.quant_gemm import QuantWeight


class SafetensorsSource:
    """A TensorSource over mapped safetensors files; close it when the weights are loaded."""

    def __init__(self, files: ModelFiles) -> None:
        """BadArtifact when a file's header is damaged or its data shorter than the header says."""
        self.where = str(files.path)
        self._stack = ExitStack()
        self._files: dict[str, Any] = {}
        for path in files.weights:
            try:
                opened = self._stack.enter_context(safe_open(path, framework="pt"))
            except (SafetensorError, OSError) as error:
                self.close()
                raise BadArtifact(f"{path}: bad safetensors file ({error}); copy or download the file again") from error
            self._files.update(dict.fromkeys(opened.keys(), opened))

    def file_name(self, name: str) -> str:
        """See TensorSource."""
        return name

    def shape(self, name: str) -> tuple[int, ...] | None:
        """See TensorSource."""
        opened = self._files.get(name)
        return None if opened is None else tuple(opened.get_slice(name).get_shape())

    def read(self, name: str) -> Tensor:
        """See TensorSource."""
        tensor: Tensor = self._files[name].get_tensor(name)
        if not tensor.dtype.is_floating_point:
            raise BadArtifact(
                f"{self.where}: tensor {name} is {tensor.dtype}, expected a float dtype; use an unquantized checkpoint"
            )
        return tensor

    def packed_kind(self, name: str) -> str:
        """See TensorSource."""
        return ""

    def read_packed(self, name: str) -> QuantWeight:
        """See TensorSource; a folder holds none."""
        raise BadArtifact(f"{self.where}: tensor {name} is not quantized")

    def close(self) -> None:
        """Unmaps the files."""
        self._stack.close()

"""The native CPU kernels: a C++ library behind a plain C ABI, and the model that runs on it. Imports neither torch nor triton."""

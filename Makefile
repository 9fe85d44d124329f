# Every verb is one line. `make run` and `make test` set themselves up: they need Python >= 3.11, nothing else.
# Variables: PYTHON (the interpreter that makes .venv), VENV, ARGS (more arguments for the tool that is called),
# WORKERS (how many processes run tests).
.DEFAULT_GOAL := help
.PHONY: help setup run gen gen-check compile lint type test test-compiled interop nightly image bench bench-open bench-partitions bench-spark stall fuzz explore crash-states io-faults bit-flips crash check clean

VENV ?= .venv
PYTHON ?= $(shell tools/find_python.sh)
PY := $(VENV)/bin/python
# The compiled tree in front of the source tree; the second variable keeps the working folder out of the way.
COMPILED := PYTHONPATH="$(CURDIR)/build/compiled" PYTHONSAFEPATH=1
PYTEST := $(PY) -P -m pytest
# As many workers as there are cores, up to eight; a file's tests stay in one worker, which shares its fixtures. WORKERS=0: none.
WORKERS ?= auto
PARALLEL := -n $(WORKERS) --maxprocesses 8 --dist loadfile
# These have verbs of their own.
SLOW := --ignore=tests/interop --ignore=tests/image

help: ## what there is
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' Makefile | expand -t 15

$(VENV)/.kcoord-run: pyproject.toml tools/make_env.py
	@$(PYTHON) tools/make_env.py $(VENV) run

$(VENV)/.kcoord-dev: pyproject.toml tools/make_env.py
	@$(PYTHON) tools/make_env.py $(VENV) dev

setup: $(VENV)/.kcoord-dev ## a virtual environment with everything the other verbs need

run: $(VENV)/.kcoord-run ## serve on 127.0.0.1:9092 with ./data, compiled where a C compiler exists
	@exec $(PY) tools/run.py $(ARGS)

gen: setup ## write kcoord/protocol from schemas/
	$(PY) -m kcoord.codegen write

gen-check: setup ## fail when kcoord/protocol is not what schemas/ says
	$(PY) -m kcoord.codegen check

compile: setup ## build/compiled: the package with its hot modules as native code
	$(PY) tools/compile.py

lint: setup ## ruff and the import contracts
	$(VENV)/bin/ruff check . && $(VENV)/bin/lint-imports --no-cache

type: setup ## mypy --strict
	$(VENV)/bin/mypy

test: setup ## the test suite, interpreted
	$(PYTEST) $(PARALLEL) $(SLOW) $(ARGS)

test-compiled: compile ## the same suite on the compiled tree, without the tests that need a Spark session
	$(COMPILED) KCOORD_EXPECT_COMPILED=1 $(PYTEST) $(PARALLEL) $(SLOW) -m "not spark_session" $(ARGS)

interop: setup ## the Java clients and Kafka's own tools against kcoord (Java 17 and Maven)
	$(PYTEST) $(PARALLEL) tests/interop $(ARGS)

nightly: setup ## what takes too long for every change: ten minutes of reading a broker that compacts all the time
	$(PYTEST) -s -o faulthandler_timeout=0 tests/interop/test_live_broker.py --live-seconds=600 $(ARGS)

image: setup ## the container image's build script in an empty directory, and its command
	$(PYTEST) -o faulthandler_timeout=0 tests/image $(ARGS)

bench: compile ## requests/s, latency, start-up, memory; interpreted and compiled
	$(PY) -m bench.bench $(ARGS)

bench-open: compile ## opening a log with a million committed offsets: time and memory
	$(PY) -m bench.open $(ARGS)

bench-partitions: setup ## 10,000 partitions under `ulimit -n 1024`: made, written, read, stopped, killed (ARGS="--sync os")
	$(PY) -P -m bench.partitions $(ARGS)

bench-spark: compile ## how fast logs become rows, beside kafka-dump-log (ARGS="--jobs 1000000 --log-gb 1": all jobs, and memory)
	$(PY) -m bench.spark $(ARGS)

stall: compile ## the worst frame of every API: CPU per turn, who waits for it, memory (ARGS="--seconds 60 --seed 1" for a sample)
	$(COMPILED) $(PY) -m tests.stall $(ARGS)

fuzz: compile ## a million hostile inputs to native code, and a search for the costliest (ARGS="--seconds 60 --seed 1" for a sample)
	$(COMPILED) $(PY) -m tests.fuzz.engine_fuzz $(or $(ARGS),--executions 1000000 --seed 1)
	$(COMPILED) $(PY) -m tests.fuzz.costliest $(or $(ARGS),--seconds 120 --seed 1)

explore: setup ## every order of messages, losses and timeouts of a small consumer group (ARGS="--seconds 60 --seed 1" for a sample)
	$(PY) -P -m tests.explore.consumer_groups $(ARGS)

crash-states: setup ## open every state that a crash may leave on the disk (ARGS="--seconds 60 --seed 1" for a sample)
	$(PY) -P -m tests.crash.states $(ARGS)

io-faults: setup ## let every operation on files fail once, in every way (ARGS="--seconds 60 --seed 1" for a sample)
	$(PY) -P -m tests.crash.io_faults $(ARGS)

bit-flips: setup ## flip every bit of a log and open it (ARGS="--seconds 60 --seed 1" for a sample)
	$(PY) -P -m tests.crash.bit_flips $(ARGS)

crash: setup ## kill -9 a server N times under three client libraries (N=100)
	$(PY) -P -m tests.crash.kill_loop --cycles $(or $(N),100) $(ARGS)

check: lint type gen-check test ## what to run before a commit

clean: ## forget everything that was built
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

# Every target is one line. `make run` and `make test` install what they need; they require only Python >= 3.11.
# Variables: PYTHON (the interpreter that creates .venv), VENV, ARGS (further arguments for the tool),
# WORKERS (the number of test processes).
.DEFAULT_GOAL := help
.PHONY: help setup run run-compiled other-python gen gen-check compile lint format picture type test test-fast test-compiled interop nightly image lock dist release test-dist bench bench-growth bench-open bench-partitions bench-peers bench-endurance bench-spark bench-fixture profile stall fuzz explore explore-transactions crash-states io-faults bit-flips crash crash-copies differential jepsen strangers check clean

VENV ?= .venv
PYTHON ?= $(shell tools/find_python.sh)
PY := $(VENV)/bin/python
# The compiled tree in front of the source tree; the second variable keeps the working folder out of the way.
COMPILED := PYTHONPATH="$(CURDIR)/build/compiled" PYTHONSAFEPATH=1
PYTEST := $(PY) -P -m pytest
# As many workers as there are cores, up to eight; a file's tests stay in one worker, which shares its fixtures. WORKERS=0: none.
# Files go out in the order of their folders: by default those with the fewest tests go last, and they take the longest.
WORKERS ?= auto
PARALLEL := -n $(WORKERS) --maxprocesses 8 --dist loadfile --no-loadscope-reorder
# These have their own targets.
SLOW := --ignore=tests/interop --ignore=tests/image --ignore=tests/dist
# What most changes touch. The marker `slow` (pyproject.toml) leaves out what takes long there.
FAST := tests/scenarios $(addprefix tests/unit/,wire protocol core history engine log server)

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' Makefile | expand -t 22

# An interpreter that is named on the command line gets an environment of its own: the one that is there is replaced.
OTHER_PYTHON := $(if $(filter command line,$(origin PYTHON)),$(shell $(PYTHON) tools/make_env.py $(VENV) compare))

$(VENV)/.kcoord-run: pyproject.toml tools/make_env.py $(OTHER_PYTHON)
	@$(PYTHON) tools/make_env.py $(VENV) run

$(VENV)/.kcoord-dev: pyproject.toml tools/make_env.py $(OTHER_PYTHON)
	@$(PYTHON) tools/make_env.py $(VENV) dev

setup: $(VENV)/.kcoord-dev ## create a virtual environment with all dependencies

# Environments of their own: they hold only tools.
.venv-%/.ready: pyproject.toml tools/make_env.py
	@$(PYTHON) tools/make_env.py .venv-$* $*
	@touch $@

other-python:
	@:

run: $(VENV)/.kcoord-run ## serve on 127.0.0.1:9092 with ./data
	@exec $(PY) tools/run.py $(ARGS)

run-compiled: $(VENV)/.kcoord-run ## the same with the hot modules as native code: compiles for minutes, once
	@exec $(PY) tools/run.py --compile $(ARGS)

gen: setup ## generate kcoord/protocol and the tables that serve its APIs from schemas/, and pages of docs/
	$(PY) -m kcoord.codegen write
	$(PY) -m kcoord.cli.main config --output markdown > docs/configuration.md
	$(PY) -m kcoord.cli.reference > docs/cli.md
	$(PY) -m kcoord.spark.tables.reference > docs/spark-tables.md

gen-check: setup ## fail if the generated code does not match schemas/
	$(PY) -m kcoord.codegen check

compile: setup ## build build/compiled: the package with its hot modules as native code
	$(PY) tools/compile.py

lint: setup ## ruff's checks and format, the import contracts, and the pictures in ARCHITECTURE.md
	$(VENV)/bin/ruff check . && $(VENV)/bin/ruff format --check . && $(VENV)/bin/lint-imports --no-cache && $(PY) tools/picture.py --check

picture: setup ## draw the packages and their imports in ARCHITECTURE.md
	$(PY) tools/picture.py

format: setup ## format the code, and sort its imports
	$(VENV)/bin/ruff check --select I --fix . && $(VENV)/bin/ruff format .

type: setup ## mypy --strict
	$(VENV)/bin/mypy

test: setup ## the test suite, interpreted
	$(PYTEST) $(PARALLEL) $(SLOW) -m "not nightly" $(ARGS)

test-fast: setup ## the core of a change in under a minute: wire, protocol, core, engine, log, server and scenarios
	$(PYTEST) $(PARALLEL) $(FAST) -m "not slow" $(ARGS)

# Of tests/spark only a few: native code in Spark's workers. The others start a JVM each, and test
# nothing else that is compiled. Neither do the tests of child processes that hang, of the sources, the documentation,
# the commands' options and the generator, and of the searches that have their own targets.
INTERPRETED := $(addprefix --ignore=tests/,unit/cli unit/codegen unit/test_house_rules.py differential explore jepsen)
test-compiled: compile ## the same suite on the compiled tree, without most tests that start Spark
	$(COMPILED) KCOORD_EXPECT_COMPILED=1 $(PYTEST) $(PARALLEL) $(SLOW) $(INTERPRETED) --ignore-glob="tests/spark/test_[!ps]*" --ignore-glob="tests/unit/server/maintenance/test_*child*" --ignore-glob="tests/*/test_docs_*" -m "not spark_session and not nightly" $(ARGS)

interop: setup ## the Java clients and Kafka's own tools against kcoord (Java 17 and Maven)
	$(PYTEST) $(PARALLEL) tests/interop -m "not nightly" $(ARGS)

nightly: setup ## long tests: days of groups, all recorded scripts of consumer groups beside a broker, clients with an older broker, kills under exact copies and under recorded clients, strangers beside polite clients, a Spark cluster, HDFS, random histories beside a broker, and ten minutes of reading the files of a broker that compacts
	$(PYTEST) -o faulthandler_timeout=0 tests/unit/client tests/client tests/differential tests/double tests/interop tests/crash tests/jepsen tests/strangers tests/spark -m nightly --live-seconds=600 $(ARGS)

image: setup ## the container image's build script in an empty directory, and its command
	$(PYTEST) -o faulthandler_timeout=0 tests/image $(ARGS)

lock: ## resolve the image's locked dependencies (ARGS=--upgrade: to their newest versions)
	@$(PYTHON) -m venv build/lock && build/lock/bin/python -m pip --quiet --disable-pip-version-check install 'uv>=0.13,<1'
	@build/lock/bin/python docker/lock.py build/lock/bin/uv $(ARGS)

dist: .venv-release/.ready ## sdist, pure wheel, this platform's compiled wheel and executable file, with checksums and bills of materials, in dist/
	.venv-release/bin/python tools/dist.py $(ARGS)

release: .venv-release/.ready ## everything that a tagged version publishes, in dist/ (needs a container engine; docs/releasing.md)
	.venv-release/bin/python tools/dist.py --release $(ARGS)

test-dist: setup dist ## install what is in dist/ into empty environments, and use it
	$(PYTEST) -o faulthandler_timeout=0 tests/dist

bench: compile ## requests/s, latency, start-up, memory; interpreted and compiled
	$(PY) -m bench.bench $(ARGS)

bench-growth: compile ## CPU per request as groups, members and offsets grow (ARGS="--plots build/plots --only \"classic members\"")
	$(COMPILED) $(PY) -m bench.growth $(ARGS)

bench-open: compile ## opening a log with a million committed offsets: time and memory
	$(PY) -m bench.open $(ARGS)

bench-partitions: setup ## 10,000 partitions under `ulimit -n 1024`: created, written, read, stopped, killed (ARGS="--sync os")
	$(PY) -P -m bench.partitions $(ARGS)

bench-endurance: compile ## an hour of commits at the highest rate: rate, latency and the size of the log by minute (ARGS="--minutes 5")
	$(PY) -P -m bench.endurance $(ARGS)

bench-peers: compile ## requests, records and groups beside kfake (Go 1.26) and Kafka (Java 17, Maven), as ratios with their spread (ARGS="--only kfake 8x1")
	$(PY) -P -m bench.peers $(ARGS)

bench-fixture: compile ## the pytest fixture and 100 tests with it, next to EmbeddedKafka and kfake (Java 17, Maven, Go 1.26; ARGS="--only kfake")
	$(PY) -P -m bench.fixture $(ARGS)

bench-spark: compile ## speed of reading logs in Spark, next to kafka-dump-log (ARGS="--jobs 1000000 --log-gb 1": all jobs, and memory)
	$(PY) -m bench.spark $(ARGS)

# py-spy has an environment of its own, and the server that it starts has the usual one.
profile: $(if $(findstring --interpreted,$(ARGS)),setup,compile) .venv-profile/.ready ## a flame graph of a server under load in build/profile, and its ten largest functions (ARGS="--interpreted commit-5 --seconds 10")
	$(PY) -P -m bench.flame .venv-profile/bin/py-spy $(ARGS)

stall: compile ## the worst frame of every API: CPU per turn, delay of others, memory (ARGS="--seconds 60 --seed 1" for a sample)
	$(COMPILED) $(PY) -m tests.stall $(ARGS)

fuzz: compile ## a million hostile inputs to native code, and a search for the most expensive (ARGS="--seconds 60 --seed 1" for a sample)
	$(COMPILED) $(PY) -m tests.fuzz.engine_fuzz $(or $(ARGS),--executions 1000000 --seed 1)
	$(COMPILED) $(PY) -m tests.fuzz.costliest $(or $(ARGS),--seconds 120 --seed 1)

explore: setup ## every order of messages, losses and timeouts of a small consumer group (ARGS="--seconds 60 --seed 1" for a sample)
	$(PY) -P -m tests.explore.consumer_groups $(ARGS)

explore-transactions: setup ## transactional producers under delays, lost answers, crashes and rivals (ARGS="--seconds 60 --seed 1" for a sample)
	$(PY) -P -m tests.explore.transactions $(ARGS)

crash-states: setup ## open every state that a crash can leave on disk (ARGS="--seconds 60 --seed 1" for a sample)
	$(PY) -P -m tests.crash.states $(ARGS)

io-faults: setup ## make every file operation fail once, in every way (ARGS="--seconds 60 --seed 1" for a sample)
	$(PY) -P -m tests.crash.io_faults $(ARGS)

bit-flips: setup ## flip every bit of a log and open it (ARGS="--seconds 60 --seed 1" for a sample)
	$(PY) -P -m tests.crash.bit_flips $(ARGS)

crash: setup ## kill -9 a server N times under three client libraries (N=100)
	$(PY) -P -m tests.crash.kill_loop --cycles $(or $(N),100) $(ARGS)

crash-copies: setup ## kill -9 a server and its clients under exact copies in Java, confluent-kafka and aiokafka (ARGS="--messages 100000")
	$(PY) -P -m tests.crash.kill_copies $(ARGS)

differential: setup ## random histories that a Kafka broker and this server have to answer alike (Java 17, Maven; ARGS="--seconds 60 --seed 1 --kind transactions")
	$(PY) -P -m tests.differential $(ARGS)

jepsen: setup ## record what clients see under kill -9, and check it as Jepsen's Kafka workload does (ARGS="--seconds 60 --seed 1")
	$(PY) -P -m tests.jepsen.workload $(ARGS)

strangers: setup ## clients that misbehave beside polite ones, which must not suffer; compiled if `make compile` has run (ARGS="--seconds 60 --seed 1")
	$(if $(wildcard build/compiled/kcoord),$(COMPILED)) $(PY) -P -m tests.strangers $(ARGS)

.PHONY: docs docs-serve
# Material for MkDocs would print a warning about MkDocs 2, which pyproject.toml excludes.
MKDOCS := NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs

docs: .venv-docs/.ready ## build build/site: the documentation as a site, with a search that works without a network
	$(MKDOCS) build --strict

docs-serve: .venv-docs/.ready ## show the site while you write, on 127.0.0.1:8000 (ARGS="--dev-addr 127.0.0.1:8001")
	$(MKDOCS) serve --strict $(ARGS)

check: lint type gen-check test ## all checks to run before a commit

clean: ## remove everything that was built
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

.PHONY: examples
# The command that the samples start. EXECUTABLE is what `make dist` has built: make examples SERVER='$(EXECUTABLE)'
SERVER = $(VENV)/bin/kcoord
EXECUTABLE = $(wildcard dist/kcoord-*-linux-$(shell uname -m))
# An absolute path, because the tests run in their own folders.
EXAMPLES_SERVER = KCOORD="$(abspath $(SERVER))"

examples: setup ## the sample tests in Go, Java and Node.js against this checkout's server (Go 1.26, Java 17, Maven, Node.js 20)
	@test -x "$(SERVER)" || { echo "make examples: there is no program $(SERVER)" >&2; exit 1; }
	@for tool in go java mvn node npm; do command -v $$tool >/dev/null || { echo "make examples needs $$tool" >&2; exit 1; }; done
	cd examples/go && $(EXAMPLES_SERVER) go test -count=1 ./...
	cd examples/java && $(EXAMPLES_SERVER) mvn --quiet --batch-mode test
	cd examples/node && npm install --no-package-lock --no-audit --no-fund && $(EXAMPLES_SERVER) npm test

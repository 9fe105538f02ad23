# Everything a newcomer or a build machine runs. Each target sets itself up in .venv; needs Python 3.11+ and a network.
# Installs only what that target needs, checked against the hashes in requirements.lock; a stamp file in .venv remembers
# what was installed.

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test native test-native test-client slow planted console-test frameworks compatibility check format docs docs-serve package mutants interop interop-all mqadmin interop-suite bench bench-quick bench-compare soak soak-pops attack faults spark spark35 spark40 spark41 spark-versions spark-rows spark-kills spark-demo lock audit sbom clean distclean

VENV := .venv
SPARK := .cache/spark
export NO_MKDOCS_2_WARNING := 1
# Without caches each worker would rewrite every test file, and each server that a test starts compile its modules.
unexport PYTHONDONTWRITEBYTECODE
# Windows has another layout of virtual environments; there, run make in Git Bash.
PY := $(VENV)/$(if $(filter Windows_NT,$(OS)),Scripts/python.exe,bin/python)
TOOLS := .cache/audit
SOURCES_OF_SETUP := pyproject.toml requirements.lock
# What the named extras need, in the versions of requirements.lock and with its hashes; then this repository itself.
# --no-deps: pip looks for the newest version of a package that another one needs with an extra, such as coverage[toml],
# whatever the lock says of that package. pip check says so if the lock lacks one.
# $(call install,PYTHON,EXTRAS)
define install
$(PY) -m tools.locked $(2) > $(VENV)/wanted.lock
$(PY) -m tools.progress $(1) -m pip install --progress-bar off --disable-pip-version-check --no-deps --require-hashes -r $(VENV)/wanted.lock
$(1) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
@$(1) -m pip check --disable-pip-version-check > $(VENV)/missing.txt || { cat $(VENV)/missing.txt; exit 1; }
endef

# Fails where a public name lacks a type. It looks for packages beside the python that comes first in PATH.
define types_complete
@PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(PY) -m basedpyright --ignoreexternal --verifytypes $(1) > $(VENV)/types.txt \
	|| { grep -E "error:|score" $(VENV)/types.txt; exit 1; }
@grep score $(VENV)/types.txt
endef

# Which interpreter makes .venv: the first of these that is new enough and whole. Or say: make demo PYTHON=/path/to/python
PYTHON ?=
CANDIDATES := $(PYTHON) python3 python3.13 python3.12 python3.11 python3.14 python3.15 python
GOOD_ENOUGH := import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))

# Extra arguments for the program behind a target: make test ARGS="-k frame -x"
ARGS ?=

help: ## show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## */\1	/' | awk -F '\t' '{printf "  make %-12s %s\n", $$1, $$2}'

demo: $(VENV)/.ready-demo ## events through name server, broker and store and back, over sockets; FILE=events.jsonl takes yours
	@$(PY) -m examples.demo $(if $(FILE),"$(FILE)") $(ARGS)

test: $(VENV)/.ready-test ## unit, property and integration tests, on every core
	@$(PY) -m pytest -n auto --dist worksteal $(ARGS)

native: $(VENV)/.ready-native ## build native/ and install it into .venv: compiled forms of hot functions (needs cargo)
	@command -v cargo >/dev/null 2>&1 || { \
		echo "native: this needs cargo, the build tool of Rust 1.85 or newer; without native forms, everything runs in Python"; exit 1; }
	@$(PY) -m tools.crates lock
	@PATH="$(CURDIR)/$(dir $(PY)):$$PATH" $(PY) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation ./native
	@ROCKETPY_NATIVE=1 $(PY) -c "from rocketpy.native import native_form; print('native: .venv runs hot functions in their', native_form(), 'form')"

# In both forms: tests/unit/native calls both. Everything else here runs in the native form, and in `make test` in the one installed.
test-native: native $(VENV)/.ready-test ## the native forms against the Python forms, and the unit tests with them
	@cargo test --quiet --locked --manifest-path native/Cargo.toml
	@ROCKETPY_NATIVE=1 $(PY) -m pytest -n auto --dist worksteal tests/unit tests/property $(ARGS)

# Modules that import the broker are skipped where it does not run.
test-client: $(VENV)/.ready-test ## the unit tests of the client, also on macOS and Windows
	@$(PY) -m pytest -n auto --dist worksteal tests/property \
		$(addprefix tests/unit/,client consumer message producer protocol runtime transport) $(ARGS)

slow: $(VENV)/.ready-test ## the tests that take longer: seeded simulations, real processes killed
	@$(PY) -m pytest -n auto --dist worksteal -m "slow and not planted and not soak and not interop and not spark" $(ARGS)

planted: $(VENV)/.ready-test ## whether the crash tests and simulations catch defects that are planted
	@$(PY) -m pytest -n auto --dist worksteal -m planted $(ARGS)

console-test: $(VENV)/.ready-browser ## the console's pages in Chromium (SCREENSHOTS=DIR keeps pictures)
	@command -v chromium >/dev/null 2>&1 || { echo "console-test: install Debian's package chromium"; exit 1; }
	@$(PY) -m pytest -m browser tests/browser $(ARGS)

frameworks: $(VENV)/.ready-frameworks ## the guides to FastAPI, Django, Flask, outbox, gunicorn, uWSGI, Celery, with these installed
	@$(PY) -m pytest -n auto --dist worksteal -m frameworks tests/frameworks $(ARGS)

compatibility: $(VENV)/.ready-test ## this version and an earlier one together: clients, servers, stores, replicas (a quarter of an hour; ARGS="--old COMMIT")
	@$(PY) -m tools.compatibility.running_peers $(ARGS)

check: $(VENV)/.ready-check ## formatting, lint, types, and the documentation built strictly
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy
	$(call types_complete,rocketpy)
	$(PY) -m tools.import_map --check
	$(PY) -m tools.blocking_clients --check
	$(PY) -m tools.error_table --check
	$(PY) -m tools.figures --check
	$(PY) -m mkdocs build --strict
	@echo "check: formatting, lint, types and documentation are in order"

format: $(VENV)/.ready-check ## format the code and fix what ruff can fix
	$(PY) -m tools.blocking_clients --write
	$(PY) -m ruff check --fix-only --quiet .
	$(PY) -m ruff format .
	$(PY) -m tools.import_map --write
	$(PY) -m tools.error_table --write

docs: $(VENV)/.ready-check ## build the documentation into site/
	$(PY) -m mkdocs build --strict
	@echo "docs: open site/index.html"

docs-serve: $(VENV)/.ready-check ## the documentation on a local port, rebuilt as you write
	$(PY) -m mkdocs serve

package: $(VENV)/.ready-test $(VENV)/.ready-native ## wheel and sdist: built, their contents checked, and each extra run from the wheel (ARGS="--keep dist")
	@$(PY) -m tools.package $(ARGS)

interop: ## both directions against the real RocketMQ 4.6.0 (needs Maven and a JDK)
	@missing=""; \
	command -v mvn >/dev/null 2>&1 || missing="$$missing mvn (Maven 3.6 or newer)"; \
	java -version >/dev/null 2>&1 || missing="$$missing java (a JDK, 8 or newer)"; \
	if [ -n "$$missing" ]; then echo "interop: NOT RUN, this machine lacks:$$missing"; exit 0; fi; \
	$(MAKE) --no-print-directory $(VENV)/.ready-bench && $(PY) -m tests.interop.run $(ARGS)

mqadmin: $(VENV)/.ready-bench ## mqadmin of 4.6.0 to 5.5.0 with both servers; writes docs/reference/mqadmin.md
	@$(PY) -m tests.interop.mqadmin

interop-all: ## the interop cases with servers of 4.6.0, 4.9.7, 5.3.3 and 5.5.0; writes docs/compatibility.md (an hour)
	@$(MAKE) --no-print-directory interop ARGS="--all --page $(ARGS)"

interop-suite: $(VENV)/.ready-bench ## RocketMQ 5.3.3's own tests on our servers; ARGS is the path of its checkout
	@$(PY) -m tests.interop.suite $(ARGS)

mutants: $(VENV)/.ready-mutants ## whether tests notice small changes: ARGS="store ha dledger producer protocol", "sample --seed 7 --count 200", or "store --report"
	@nice -n 10 $(PY) -m tools.mutants $(ARGS)

bench: $(VENV)/.ready-bench ## speed beside the real RocketMQ 4.6.0 (needs Maven and a JDK)
	@$(PY) -m tools.bench.run $(ARGS)

bench-quick: $(VENV)/.ready-bench ## CPU time of a message under each load, in three minutes, as a JSON file
	@$(PY) -m tools.bench.quick $(ARGS)

bench-compare: $(VENV)/.ready-bench ## two files of bench-quick: what became slower (ARGS="A.json B.json")
	@$(PY) -m tools.bench.quick $(ARGS)

spark: $(VENV)/.ready-spark ## the Spark sink and source in real Spark sessions, against our broker
	@$(PY) -m pytest -m spark tests/spark $(ARGS)

# Older versions leave sockets to the garbage collector, and warn about themselves.
OLD_SPARK := -W ignore::DeprecationWarning -W ignore::FutureWarning -W ignore::ResourceWarning \
	-W ignore::pytest.PytestUnraisableExceptionWarning -m spark

spark35: $(SPARK)35/.ready ## the sink's helpers in Spark 3.5, which has no Python data sources
	@$(SPARK)35/bin/python -m pytest $(OLD_SPARK) tests/spark/test_helpers.py $(ARGS)

spark40: $(SPARK)40/.ready ## the Spark sink and source in Spark 4.0, the oldest with Python data sources
	@$(SPARK)40/bin/python -m pytest $(OLD_SPARK) tests/spark/test_source.py tests/spark/test_source_options.py \
		tests/spark/test_sink.py $(ARGS)

spark41: $(SPARK)41/.ready ## the Spark sink and source in Spark 4.1
	@$(SPARK)41/bin/python -m pytest $(OLD_SPARK) tests/spark/test_source.py tests/spark/test_source_options.py \
		tests/spark/test_sink.py $(ARGS)

spark-versions: spark35 spark40 spark41 spark ## all of these, and the newest Spark

spark-rows: $(VENV)/.ready-spark ## long rows through the Spark sink: each stored once, a worker's memory (ARGS="--large 60": fewer)
	@$(PY) -m tools.bench.spark_rows $(ARGS)

spark-kills: $(VENV)/.ready-spark ## a Spark pipeline whose broker, name server and driver are killed in turn (30 minutes; can be continued)
	@$(PY) -m tests.spark.kills $(ARGS)

spark-demo: $(VENV)/.ready-spark ## events from JSON files through RocketMQ and back, by Spark Structured Streaming
	@$(PY) -m examples.spark_pipeline $(ARGS)

soak: $(VENV)/.ready-bench ## a long run: a broker killed and restarted under load, memory watched, every message accounted for
	@$(PY) -m tools.soak $(ARGS)

soak-pops: $(VENV)/.ready-bench ## shared messages (POP) while workers and brokers are killed, on a pair and a DLedger group (ARGS="--messages 1000000"; can be continued)
	@$(PY) -m tools.soak.pops $(ARGS)

attack: $(VENV)/.ready-test ## 100,000 hostile connections while good clients work (half an hour; two idle cores; ARGS="--connections 5000")
	@$(PY) -m tools.attack $(ARGS)

faults: $(VENV)/.ready-bench ## name servers and brokers killed and restarted in turn under load (ARGS="--make java": RocketMQ's)
	@$(PY) -m tools.soak.faults $(ARGS)

lock: $(TOOLS)/.ready ## write requirements.lock for what pyproject.toml allows; ARGS=--upgrade takes the newest versions
	@$(PY) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' | \
		$(TOOLS)/bin/uv pip compile --quiet --universal --python-version 3.11.5 --all-extras --generate-hashes \
		--no-emit-package rocketpy-mq-native --custom-compile-command "make lock" $(ARGS) pyproject.toml - -o requirements.lock
	@git diff --stat requirements.lock

audit: $(TOOLS)/.ready ## look for known vulnerabilities in everything that requirements.lock names
	@$(PY) -m tools.audit $(TOOLS)/bin/pip-audit $(ARGS)

sbom: $(TOOLS)/.ready ## write sbom.json, what a server with all its extras is made of (CycloneDX)
	@$(PY) -m tools.locked compression metrics otel speed > $(TOOLS)/server.lock
	@PYTHONWARNINGS=ignore $(TOOLS)/bin/cyclonedx-py requirements $(TOOLS)/server.lock --pyproject pyproject.toml --output-reproducible \
		--of JSON -o sbom.json $(ARGS)
	@$(PY) -m tools.crates sbom sbom.json
	@echo "sbom: $$(grep -c '"purl"' sbom.json) packages in sbom.json"

clean: ## remove what building, testing and measuring left behind
	rm -rf build dist site native/target native/Cargo.lock sbom.json .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage .coverage.* htmlcov
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean ## remove .venv too
	rm -rf $(VENV)

# --- set-up -----------------------------------------------------------------------------------------------------------

$(PY):
	@for candidate in $(CANDIDATES); do \
		if "$$candidate" -c '$(GOOD_ENOUGH)' >/dev/null 2>&1; then \
			echo "setting up $(VENV) with $$("$$candidate" --version)"; \
			exec "$$candidate" -m venv $(VENV); \
		fi; \
	done; \
	echo "rocketpy needs Python 3.11 or newer with its venv module, and none of these is one:" $(CANDIDATES). \
		"Install it (on Debian or Ubuntu: apt install python3-venv) or name yours: make $(MAKECMDGOALS) PYTHON=/path/to/python3.12" >&2; \
	exit 1

$(VENV)/.ready-demo: $(SOURCES_OF_SETUP) | $(PY)
	@echo "installing rocketpy and what it needs to run"
	@$(call install,$(PY),)
	@touch $@

$(VENV)/.ready-test: $(SOURCES_OF_SETUP) | $(PY)
	@echo "installing rocketpy and its test tools"
	@$(call install,$(PY),test)
	@touch $@

$(VENV)/.ready-native: $(SOURCES_OF_SETUP) | $(PY)
	@echo "installing rocketpy and maturin"
	@$(call install,$(PY),build-native)
	@touch $@

$(VENV)/.ready-mutants: $(SOURCES_OF_SETUP) | $(PY)
	@echo "installing rocketpy, its test tools and cosmic-ray"
	@$(call install,$(PY),mutants)
	@touch $@

$(VENV)/.ready-browser: $(SOURCES_OF_SETUP) | $(PY)
	@echo "installing rocketpy, its test tools and Playwright"
	@$(call install,$(PY),browser)
	@touch $@

$(VENV)/.ready-frameworks: $(SOURCES_OF_SETUP) | $(PY)
	@echo "installing rocketpy, its test tools and web frameworks"
	@$(call install,$(PY),frameworks)
	@touch $@

$(VENV)/.ready-bench: $(SOURCES_OF_SETUP) | $(PY)
	@echo "installing rocketpy, its test tools, uvloop and another client"
	@$(call install,$(PY),test speed bench)
	@touch $@

$(VENV)/.ready-spark: $(SOURCES_OF_SETUP) | $(PY)
	@echo "installing rocketpy, its test tools and Spark (half a gigabyte)"
	@$(call install,$(PY),test spark jdk)
	@touch $@

# An environment of its own: what audits must not add to what is audited.
$(TOOLS)/.ready: $(SOURCES_OF_SETUP) | $(PY)
	@echo "installing uv, pip-audit and cyclonedx-bom"
	@$(PY) -m venv $(TOOLS)
	@$(PY) -m tools.locked audit > $(TOOLS)/wanted.lock
	@$(TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r $(TOOLS)/wanted.lock
	@touch $@

# Environments of their own, beside the newest Spark: spark40 has 4.0. The lock has the newest only.
$(SPARK)%/.ready: $(SOURCES_OF_SETUP) | $(PY)
	$(eval VERSION := $(shell echo $* | sed 's/./&./'))
	@echo "installing rocketpy, its test tools and Spark $(VERSION) (half a gigabyte)"
	@$(PY) -m venv $(SPARK)$*
	@$(call install,$(SPARK)$*/bin/python,test spark jdk --without pyspark --without py4j)
	@$(PY) -m tools.progress $(SPARK)$*/bin/python -m pip install --progress-bar off --disable-pip-version-check "pyspark==$(VERSION).*"
	@touch $@

$(VENV)/.ready-check: $(SOURCES_OF_SETUP) | $(PY)
	@echo "installing rocketpy and the tools that check, format and document it"
	@$(call install,$(PY),dev)
	@touch $@

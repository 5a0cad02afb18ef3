# make test     all required checks: format, lints, tests, docs; prints the time of each step
# make format, language, lint, tests, plain, doctests, docs, api   one step of make test; make test STEPS="format instructions" runs several
# make test-all  make test with random tests at full size
# make bench    measurements of Tidegate and its peers in one run, written into docs/benchmarks.md; make bench PARTS="growth redis" runs
#               some parts; QUICK=1 runs shorter and writes nothing
# make bench-listeners  the listeners only, with all tables; make bench-listeners TABLES="http latency" prints some
# make bench-gateway  requests through the gateway, compared with other proxies
# make bench-reload  very many rules: loading, matching, and replacing them under load
# make instructions  instructions per operation on the hot paths, compared with bench/instructions.json
# make frontier  overshoot, utilisation and latency of each accuracy on a fleet
# make faults   slowest check, failed-open checks and recovery time for each Redis fault
# make model    exhaustive exploration of the lease protocol for small fleets
# make soak     the property tests with a hundred times the cases
# make soak-faults  checks the stated bounds under random faults on real processes: SECONDS=600, SEED=17, EPISODE=4
# make fuzz     each fuzz target for a minute
# make pictures  screenshots in docs/images, from a browser and a server under load
# make reference  docs/reference, generated from the parsers of rules and configurations
# make openapi  crates/api/openapi.json, generated from the types and operations in crates/api
# make proto    crates/proto/src/generated, generated from the messages in crates/proto/proto
# make public-api  crates/tidegate/public-api.txt, the listing of the library's public interface
# make deny     checks licences, sources and banned crates of all dependencies
# make advisories  checks all dependencies against the RustSec advisory database, which it downloads

CARGO ?= cargo
FUZZ_SECONDS ?= 60
SECONDS ?= 600
# Parts of the benchmark, in the order of docs/benchmarks.md.
PARTS ?= matcher in_process growth redis redis_memory listeners gateway
BENCH_BINARIES = $(or $(CARGO_TARGET_DIR),target)/dist
BENCH_RESULTS = $(abspath $(or $(CARGO_TARGET_DIR),target)/bench-results)
INSTALL_DENY = command -v cargo-deny >/dev/null || { echo "will install cargo-deny from crates.io"; $(CARGO) install --locked cargo-deny; }

.PHONY: test test-all setup format language lint tests plain doctests docs api bench bench-build bench-listeners bench-gateway bench-reload instructions frontier faults model soak soak-faults fuzz pictures reference openapi proto public-api deny advisories

test: setup
	@tools/run-tests.py $(STEPS)

test-all: setup
	TIDEGATE_CASES=4000 TIDEGATE_STEPS=1000000 tools/run-tests.py

setup:
	@tools/setup.sh

format language lint tests plain doctests docs api:
	@tools/run-tests.py $@

bench: setup bench-build
	@rm -rf $(BENCH_RESULTS) && mkdir -p $(BENCH_RESULTS)
	@failed=; for part in $(PARTS); do \
	  echo "bench: $$part" && TIDEGATE_RESULTS=$(BENCH_RESULTS) $(BENCH_BINARIES)/$$part $(if $(QUICK),--quick) || failed="$$failed $$part"; \
	done; \
	$(if $(QUICK),echo "bench: the results of a quick run are in $(BENCH_RESULTS)",tools/write-benchmarks.py $(BENCH_RESULTS)) && \
	if [ -n "$$failed" ]; then echo "bench: failed:$$failed" >&2; exit 1; fi

bench-build:
	@tools/setup-bench.sh
	$(CARGO) build --locked --profile dist -p tidegate-cli -p tidegate-bench --bins

bench-listeners: setup bench-build
	$(BENCH_BINARIES)/listeners $(if $(QUICK),--quick) $(TABLES)

bench-gateway: setup bench-build
	$(BENCH_BINARIES)/gateway $(if $(QUICK),--quick)

bench-reload:
	$(CARGO) run --locked --profile dist -p tidegate-bench --bin reload

instructions:
	@tools/setup.sh valgrind
	@# Valgrind hides the vDSO, so rustix must use libc.
	RUSTFLAGS="--cfg rustix_use_libc" $(CARGO) build --locked --release -p tidegate-cli -p tidegate-bench --bin tidegate --bin instructions
	$${CARGO_TARGET_DIR:-target}/release/instructions $(if $(WRITE),--write) $(PATHS)

frontier: setup
	$(CARGO) run --locked --profile dist -p tidegate-bench --bin frontier

faults: setup
	$(CARGO) test --locked -p tidegate --features redis --test it -- faults::
	@cat "$${CARGO_TARGET_DIR:-target}/tmp/faults.md"

model:
	$(CARGO) run --locked --release -p tidegate-model

soak:
	TIDEGATE_CASES=300000 $(CARGO) test --locked --release -p tidegate-core --test it -- properties:: limit_changes:: leases::
	TIDEGATE_CASES=150000 $(CARGO) test --locked --release -p tidegate --all-features --test it -- store_contract:: limit_changes::
	TIDEGATE_STEPS=20000000 $(CARGO) test --locked --release -p tidegate --all-features --test it -- parity::
	TIDEGATE_CASES=200000 $(CARGO) test --locked --release -p tidegate-model --test it -- simulation::

soak-faults: setup
	TIDEGATE_SOAK_SECONDS=$(SECONDS) TIDEGATE_SEED=$(SEED) TIDEGATE_SOAK_EPISODE=$(EPISODE) $(CARGO) test --locked \
	  -p tidegate-cli --all-features --test it -- --ignored --nocapture fault_soak::stated_bounds_hold_under_random_faults

fuzz:
	@command -v cargo-fuzz >/dev/null || { echo "fuzz: will install cargo-fuzz from crates.io"; $(CARGO) install --locked cargo-fuzz; }
	@for target in rules limit resp envoy_yaml forwarded check_json rls log_line canonical gateway_exchange; do \
	  mkdir -p fuzz/corpus/$$target && echo "fuzz: $$target for $(FUZZ_SECONDS) s" && \
	  RUSTC_BOOTSTRAP=1 $(CARGO) fuzz run $$target fuzz/corpus/$$target fuzz/seeds/$$target -- \
	    -max_total_time=$(FUZZ_SECONDS) -timeout=5 -max_len=4096 || exit 1; \
	done

pictures: setup
	$(CARGO) test --locked -p tidegate-cli --test it -- --ignored screenshots_for_the_docs

reference:
	TIDEGATE_REFERENCE=write $(CARGO) test --locked -p tidegate-cli --bin tidegate -- committed_reference_is_current

openapi:
	TIDEGATE_OPENAPI=write $(CARGO) test --locked -p tidegate-api --all-features --lib -- committed_document_is_current

public-api:
	tools/public-api.sh --write

proto:
	TIDEGATE_PROTO=write $(CARGO) test --locked -p tidegate-proto --lib -- generated_code_is_current

deny:
	@$(INSTALL_DENY)
	$(CARGO) deny --workspace check licenses bans sources

advisories:
	@$(INSTALL_DENY)
	$(CARGO) deny --workspace check advisories

#!/usr/bin/env python3
"""Runs every check of `make test`, and then prints the failures, the skipped tests and the time of each step.

A failed step does not stop the next one. Usage: tools/run-tests.py [STEP ...]. The steps are format, language, lint,
tests, plain, doctests, docs and api; without arguments all of them run, in this order. The step instructions runs only when it is
named, because it builds the server in release mode.

TIDEGATE_CASES and TIDEGATE_STEPS set the size of random tests, TIDEGATE_SEED repeats one (`make test-all`).
"""
import collections
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time

CARGO = os.environ.get("CARGO", "cargo")
CORES = os.cpu_count() or 2
# Tests of these packages mostly wait for other processes: three of them share a core. Property tests use one core each.
WAITING_PACKAGES = ["tidegate", "tidegate-admin", "tidegate-cli", "tidegate-gateway", "tidegate-net", "tidegate-redis", "tidegate-service",
           "tidegate-testkit", "tidegate-transport"]
THREADS_PER_CORE = dict.fromkeys(WAITING_PACKAGES, 3)
# Tests in a module of this name depend on time. They run sequentially, after all other tests.
SERIAL_MODULE = "::serial::"
# Package selection of the tests. Doc tests use the same one, so that both share build artifacts.
TEST_SELECTION = ["--locked", "--workspace", "--exclude", "tidegate-bench", "--all-features"]
# Tests of the binary without its features.
PLAIN_TESTS = ["grpc_native::", "http::", "resp::", "serve::", f"--test-threads={3 * CORES}"]
# A test binary that runs longer is killed.
MAX_BINARY_SECONDS = 1800

Test = collections.namedtuple("Test", "package name seconds passed output")


def cargo(*arguments, **environment):
    """Runs cargo with inherited output, and returns whether it succeeded."""
    return subprocess.run([CARGO, *arguments], env=os.environ | environment).returncode == 0


def build_test_binaries():
    """Builds the test binaries. Returns (package, target, folder, file) for each, or None if the build fails."""
    command = [CARGO, "test", "--no-run", *TEST_SELECTION, "--message-format=json-render-diagnostics"]
    build = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if build.returncode != 0:
        return None
    binaries = []
    for message in map(json.loads, filter(None, build.stdout.splitlines())):
        if message["reason"] == "compiler-artifact" and message["profile"]["test"] and message["executable"]:
            folder = os.path.dirname(message["manifest_path"])
            package = re.search(r'^name = "(.+)"', open(message["manifest_path"]).read(), re.M)[1]
            binaries.append((package, message["target"]["name"], folder, message["executable"]))
    return sorted(binaries)


def run_binary(package, folder, file, arguments, skip_log):
    """Runs one test binary. Returns its tests, and an error message if failed tests do not explain the exit status."""
    # JSON and times are unstable options of libtest.
    environment = os.environ | {"RUSTC_BOOTSTRAP": "1", "TIDEGATE_SKIP_LOG": skip_log}
    command = [file, "-Zunstable-options", "--format=json", "--report-time", *arguments]
    process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, errors="replace")
    tests, other = [], []
    watchdog = threading.Timer(MAX_BINARY_SECONDS, process.kill)
    watchdog.start()
    for line in process.stdout:
        try:
            event = json.loads(line)
        except ValueError:
            other.append(line)
            continue
        if event.get("type") == "test" and event["event"] in ("ok", "failed"):
            passed = event["event"] == "ok"
            tests.append(Test(package, event["name"], event.get("exec_time", 0.0), passed, event.get("stdout", "")))
            if not passed:
                print(f"FAILED {package} {event['name']}\n{event.get('stdout', '')}", flush=True)
    status = process.wait()
    watchdog.cancel()
    explained = status == 0 or (status == 101 and any(not test.passed for test in tests))
    return tests, None if explained else f"{file} ended with status {status}: {''.join(other[-20:])}"


def run_tests(report):
    started = time.monotonic()
    binaries = build_test_binaries()
    report.steps.append(("build tests", time.monotonic() - started, binaries is not None))
    if binaries is None:
        return
    with tempfile.NamedTemporaryFile("r", prefix="tidegate-skipped-") as skip_log:
        for serial in (False, True):
            for package, target, folder, file in binaries:
                threads = 1 if serial else CORES * THREADS_PER_CORE.get(package, 1)
                selection = [SERIAL_MODULE] if serial else ["--skip", SERIAL_MODULE]
                started = time.monotonic()
                tests, problem = run_binary(package, folder, file, [f"--test-threads={threads}", *selection], skip_log.name)
                seconds = time.monotonic() - started
                failed = sum(not test.passed for test in tests)
                report.tests += tests
                if problem:
                    print(problem, flush=True)
                if tests or problem:
                    name = f"{package} {target}{', sequential' if serial else ''}"
                    print(f"{name}: {len(tests)} tests, {failed} failed, {seconds:.1f} s", flush=True)
                    report.steps.append((name, seconds, not failed and not problem))
        report.skipped = sorted(set(skip_log.read().splitlines()))


class Report:
    def __init__(self):
        self.steps, self.tests, self.skipped = [], [], []

    def step(self, name, work):
        print(f"== {name}", flush=True)
        started = time.monotonic()
        passed = work()
        self.steps.append((name, time.monotonic() - started, passed))

    def print(self):
        print("\n== Time per step")
        for name, seconds, passed in self.steps:
            print(f"{seconds:8.1f} s  {name}{'' if passed else ': FAILED'}")
        print(f"{sum(seconds for _, seconds, _ in self.steps):8.1f} s  total")
        slowest = sorted(self.tests, key=lambda test: -test.seconds)[:15]
        if slowest:
            print("== Slowest tests")
        for test in slowest:
            print(f"{test.seconds:8.1f} s  {test.package} {test.name}")
        if self.skipped:
            print("== Skipped")
        for line in self.skipped:
            print(f"  {line}")
        failed = [test for test in self.tests if not test.passed]
        if failed:
            print("== Failed")
        for test in failed:
            print(f"  {test.package} {test.name}")
        if self.tests:
            passed = len(self.tests) - len(failed) - len(self.skipped)
            print(f"{passed} passed, {len(failed)} failed, {len(self.skipped)} skipped")
        return all(passed for _, _, passed in self.steps)


def main():
    workspace = ["--locked", "--workspace", "--all-features"]
    report = Report()
    steps = {
        "format": lambda: cargo("fmt", "--all", "--check"),
        "language": lambda: subprocess.run(["tools/check-language.py"]).returncode == 0,
        "lint": lambda: cargo("clippy", *workspace, "--all-targets", "--", "-D", "warnings")
        and cargo("check", "--locked", "-p", "tidegate", "--no-default-features")
        and cargo("clippy", "--locked", "-p", "tidegate-cli", "--no-default-features", "--all-targets", "--", "-D", "warnings"),
        "tests": None,
        # Tests the binary without simulator, load generator and terminal view.
        "plain": lambda: cargo("test", "--locked", "-p", "tidegate-cli", "--no-default-features", "--test", "it", "--", *PLAIN_TESTS),
        "doctests": lambda: cargo("test", *TEST_SELECTION, "--doc", "--no-fail-fast"),
        "docs": lambda: cargo("doc", *workspace, "--no-deps", RUSTDOCFLAGS="-D warnings"),
        "api": lambda: subprocess.run(["tools/public-api.sh"]).returncode == 0,
        "instructions": lambda: subprocess.run(["make", "instructions"]).returncode == 0,
    }
    wanted = sys.argv[1:] or [name for name in steps if name != "instructions"]
    unknown = [name for name in wanted if name not in steps]
    if unknown:
        sys.exit(f"run-tests: unknown step {unknown[0]!r}, wanted one of {', '.join(steps)}")
    for name in wanted:
        if name == "tests":
            print("== tests", flush=True)
            run_tests(report)
        else:
            report.step(name, steps[name])
    sys.exit(0 if report.print() else 1)


if __name__ == "__main__":
    main()

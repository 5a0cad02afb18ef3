#!/usr/bin/env python3
"""Writes the results of `make bench` into docs/benchmarks.md, and its charts into docs/images/benchmarks.

Usage: tools/write-benchmarks.py RESULTS. In the page, the text between `<!-- table NAME -->` and `<!-- end -->` is replaced
with RESULTS/NAME.md and its chart. A table that the run did not measure is unchanged, and is reported. The tables `goals` and
`machine` are made here: from RESULTS/goals.jsonl, and from the machine and the versions of the measured programs.
"""
import datetime
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/benchmarks.md"
IMAGES = ROOT / "docs/images/benchmarks"
TOOLS = pathlib.Path.home() / ".cache/tidegate-tools/bin"
PLACE = re.compile(r"(<!-- table (\w+) -->\n)(.*?)(<!-- end -->)", re.S)
# Commands that print the version of a program.
VERSIONS = {
    "Redis": ["redis-server", "--version"],
    "NGINX": ["nginx", "-v"],
    "HAProxy": ["haproxy", "-v"],
    "Envoy": ["envoy", "--version"],
    "Traefik": ["traefik", "version"],
    "Node": ["node", "--version"],
    "wrk": ["wrk", "-v"],
    "h2load": ["h2load", "--version"],
}


def output_of(command):
    """Returns the output of a command on both streams, or an empty text if it is not installed."""
    path = os.pathsep.join([os.environ["PATH"], "/usr/sbin", str(TOOLS)])
    program = shutil.which(command[0], path=path)
    if not program:
        return ""
    done = subprocess.run([program, *command[1:]], cwd=ROOT, capture_output=True, text=True)
    return done.stdout + done.stderr


def markdown(columns, rows):
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def goals(file, old):
    """Returns the results that have a goal: those of this run, and of the old table what this run did not measure."""
    results = {row[:2]: row for row in re.findall(r"^\| (.+?) \| (.+?) \| (.+?) \| ((?:not )?met) \|$", old, re.M)}
    for line in file.read_text().splitlines():
        result = json.loads(line)
        row = tuple(result[column] for column in ["name", "goal", "measured", "verdict"])
        results[row[:2]] = row
    met = sum(row[3] == "met" for row in results.values())
    return f"{met} of {len(results)} goals are met.\n\n" + markdown(["", "goal", "measured", ""], results.values())


def with_chart(table, chart):
    """Returns a table with the chart of the same name above it, if there is one."""
    if not chart.exists():
        return table
    title = re.search(r"<title>(.*)</title>", chart.read_text())[1]
    return f"![{title}](images/benchmarks/{chart.name})\n\n{table}"


def machine():
    cpu = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    memory = int(re.search(r"MemTotal:\s*(\d+)", pathlib.Path("/proc/meminfo").read_text())[1]) // 2**20
    rows = [
        ["date", datetime.date.today().isoformat()],
        ["commit", output_of(["git", "rev-parse", "--short=12", "HEAD"]).strip()],
        ["processor", f"{cpu[1] if cpu else platform.machine()}, {os.cpu_count()} cores"],
        ["memory", f"{memory} GiB"],
        ["system", f"{platform.system()} {platform.release()}"],
        ["load of the machine after the run", ", ".join(f"{load:.1f}" for load in os.getloadavg())],
        ["Rust", output_of(["rustc", "--version"]).strip()],
    ]
    for name, command in VERSIONS.items():
        version = re.search(r"v?(\d+\.\d+(\.\d+)?)", output_of(command))
        rows.append([name, version[1] if version else "not installed"])
    return markdown(["", ""], rows)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    results = pathlib.Path(sys.argv[1])
    tables = {file.stem: with_chart(file.read_text(), file.with_suffix(".svg")) for file in results.glob("*.md")}
    tables["machine"] = machine()
    page = PAGE.read_text()
    places = {place[2]: place[3] for place in PLACE.finditer(page)}
    if (results / "goals.jsonl").exists():
        tables["goals"] = goals(results / "goals.jsonl", places["goals"])
    page = PLACE.sub(lambda place: place[1] + tables.get(place[2], place[3]) + place[4], page)
    PAGE.write_text(page)
    IMAGES.mkdir(parents=True, exist_ok=True)
    for chart in results.glob("*.svg"):
        shutil.copy(chart, IMAGES)
    for name in places:
        if name not in tables:
            print(f"write-benchmarks: {name} was not measured, its old table stays", file=sys.stderr)
    for name in tables.keys() - places.keys():
        print(f"write-benchmarks: docs/benchmarks.md has no place for {name}", file=sys.stderr)


if __name__ == "__main__":
    main()

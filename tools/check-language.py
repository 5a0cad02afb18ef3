#!/usr/bin/env python3
"""Fails on wording that CONTRIBUTING.md rules out, in comments, test names, docs and the texts of the program.

Usage: tools/check-language.py [FILE ...], without one every file that git tracks. Each finding is one line:
FILE:LINE: found TEXT, wanted ALTERNATIVE.
"""
import re
import subprocess
import sys

# A line of a block of comments, by the ending of the file.
COMMENT = {
    ".rs": re.compile(r"^\s*//[/!]? ?(.*)"),
    ".js": re.compile(r"^\s*//+ ?(.*)"),
    ".proto": re.compile(r"^\s*//+ ?(.*)"),
    ".lua": re.compile(r"^\s*--+ ?(.*)"),
    ".py": re.compile(r"^\s*# ?(.*)"),
    ".sh": re.compile(r"^\s*# ?(.*)"),
    ".yaml": re.compile(r"^\s*# ?(.*)"),
    ".md": re.compile(r"(.*)"),
}
# A doc comment starts with a verb or a noun.
DOC_START = re.compile(r"^\s*/// (What|Who|Whoever|How|Whether|Where|Which|When|Why|Whose|Whom|Of|So)\b")
PEOPLE = re.compile(r"\b(whoever|whomever|nobody|somebody|everybody)\b", re.I)
PEOPLE_IN_CODE = re.compile(r"\b(who|whom|whose)\b", re.I)
SPEECH = re.compile(
    r"\b(tells?|told|telling|hears?|heard|says?|said|believes?|believed|forgets?|forgotten|doors?|errands?|purses?"
    r"|household|riddles?|comes? (?:back|again)|goes? away|looks? (?:at|after|whether))\b",
    re.I,
)
TEST_NAME = re.compile(
    r"(^|_)(who|whoever|whom|nobody|somebody|everybody|tells?|told|hears?|heard|says?|said|believes?|forgets?|doors?)(_|$)|^what_"
)
TEST = re.compile(r"#\[(?:tokio::)?test\b")
FUNCTION = re.compile(r"^\s*(?:async )?fn (\w+)")
# A string in the code of the program; tests may use any name for a client.
TEXT = re.compile(r'"((?:[^"\\]|\\.)*)"')
IN_TESTS = re.compile(r"(^|/)(tests?|vectors)(/|\.rs$)|^fuzz/")
# Code that a tool writes, and texts of others.
SKIPPED = re.compile(r"(^|/)generated/|^CHANGELOG\.md$|^LICENSE|/snapshots/|^tools/check-language\.py$")


def findings(path, lines):
    """Yields (line number, found, wanted) for each rule that a line breaks."""
    ending = path[path.rfind("."):]
    in_doc = in_code_block = is_test = False
    for number, line in enumerate(lines, 1):
        if ending == ".rs":
            is_doc = line.lstrip().startswith("///")
            start = DOC_START.match(line)
            if is_doc and not in_doc and start:
                yield number, f'a doc comment that starts with "{start[1]}"', "a verb (Returns, Charges) or a noun"
            in_doc = is_doc
            is_test = is_test or bool(TEST.search(line))
            function = FUNCTION.match(line)
            if function:
                word = TEST_NAME.search(function[1])
                if is_test and word:
                    yield number, f'"{word[0].strip("_")}" in the name of a test', "the checked behaviour"
                is_test = False
        comment = COMMENT[ending].match(line)
        if ending == ".md" and line.lstrip().startswith("```"):
            in_code_block = not in_code_block
        if not comment and ending == ".rs" and not IN_TESTS.search(path):
            for word in PEOPLE.finditer(" ".join(TEXT.findall(line))):
                yield number, f'"{word[0]}" in a text', "the client, caller, operator, node or thread"
        if not comment or in_code_block:
            continue
        # Names in code quotes are not prose.
        text = re.sub(r"`[^`]*`", "", comment[1])
        for word in PEOPLE.finditer(text):
            yield number, f'"{word[0]}"', "the client, caller, operator, node or thread"
        if ending != ".md":
            for word in PEOPLE_IN_CODE.finditer(text):
                yield number, f'"{word[0]}"', "the client, caller, operator, node or thread"
            for word in SPEECH.finditer(text):
                yield number, f'"{word[0]}"', "a term of the field: sends, returns, reports, logs, rejects, expires"


def main():
    files = sys.argv[1:] or subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True).stdout.split("\n")
    count = 0
    for path in files:
        if path[path.rfind("."):] not in COMMENT or SKIPPED.search(path):
            continue
        try:
            lines = open(path, encoding="utf-8").read().splitlines()
        except FileNotFoundError:
            # Deleted, and not committed yet.
            continue
        for number, found, wanted in findings(path, lines):
            print(f"{path}:{number}: found {found}, wanted {wanted}")
            count += 1
    if count:
        sys.exit(f"check-language: {count} findings; CONTRIBUTING.md has the rules")


if __name__ == "__main__":
    main()

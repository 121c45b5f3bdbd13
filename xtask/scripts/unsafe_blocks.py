#!/usr/bin/env python3
"""Counts unsafe blocks of the C library after macro expansion, without tests, by crate and module.

`unsafe_blocks.py [--max N] [PACKAGE..]` fails if there are more than N. Blocks that the standard library's own macros expand to are not
counted. `--sample N` prints N random SAFETY comments of the sources instead, each with the code below it, for a review.
"""

import argparse
import collections
import os
import pathlib
import random
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]
PACKAGES = {
    "uiw-cabi-core": "cabi/core/src",
    "uiw-cabi-verbs": "cabi/verbs/src",
    "uiw-cabi-cm": "cabi/cm/src",
    "uiw-cabi-rsocket": "cabi/rsocket/src",
    "uiw-ibverbs": "cabi/ibverbs/src",
    "uiw-rspreload": "cabi/rspreload/src",
}
# Comments, strings and characters: braces and words in them are not code.
OPAQUE = re.compile(r'//[^\n]*|/\*.*?\*/|b?c?r(#*)".*?"\1|[bc]?"(?:\\.|[^"\\])*"|b?\'(?:\\.|[^\'\\])\'', re.DOTALL)
# `thread_local!` of the standard library.
FOREIGN = re.compile(r"unsafe\s*\{\s*::std::thread")
TOKEN = re.compile(r"\bmod\s+(\w+)\s*\{|\bunsafe\s*\{|[{}]")


def expanded(package):
    """The source of the library after macro expansion."""
    command = ["cargo", "rustc", "-q", "-p", package, "--lib", "--profile", "check", "--", "-Zunpretty=expanded"]
    environment = os.environ | {"RUSTC_BOOTSTRAP": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True).stdout


def count(source):
    """Number of unsafe blocks by top-level module."""
    source = FOREIGN.sub("{ ::std::thread", OPAQUE.sub("", source))
    blocks, modules = collections.Counter(), []
    for token in TOKEN.finditer(source):
        if token[0] == "}":
            modules.pop()
        else:
            modules.append(token[1])
            if token[0].startswith("unsafe"):
                blocks[next((module for module in modules if module), "lib")] += 1
    return blocks


def sample(number, packages):
    """Random SAFETY comments, with the lines that they are about."""
    found = []
    for path in sorted(path for package in packages for path in (ROOT / PACKAGES[package]).rglob("*.rs")):
        lines = path.read_text().split("#[cfg(test)]\nmod ")[0].splitlines()
        found += [(path, at, lines) for at, line in enumerate(lines) if line.lstrip().startswith("// SAFETY:")]
    for path, at, lines in random.sample(found, number):
        print(f"{path.relative_to(ROOT)}:{at + 1}", *lines[at : at + 8], "", sep="\n")


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--max", type=int)
    arguments.add_argument("--sample", type=int)
    arguments.add_argument("packages", nargs="*", default=list(PACKAGES))
    given = arguments.parse_args()
    if given.sample:
        return sample(given.sample, given.packages)
    total = 0
    for package in given.packages:
        blocks = count(expanded(package))
        total += blocks.total()
        print(f"{package}: {blocks.total()}", *(f"{name} {number}" for name, number in blocks.most_common()), sep="\n  ")
    print(f"total: {total}")
    return given.max is not None and total > given.max


if __name__ == "__main__":
    sys.exit(main())

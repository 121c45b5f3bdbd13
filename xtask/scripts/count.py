#!/usr/bin/env python3
"""Lines of code and tests per crate, and import cycles.

    python3 xtask/scripts/count.py [ROOT]

"code" is Rust without blank lines, comments, tests, examples and benches; tests are files below `tests/`, files named `tests.rs`, and
items with `#[cfg(test)]` or `#[cfg(all(test, ..))]`, with the files of such modules. "lines" are all lines of Rust. "C, sh" are all lines of C and shell. "unsafe" are `unsafe` blocks of the code,
before macros are expanded. "test functions" have `#[test]`, `#[tokio::test]` or the like, also inside `proptest!`. A cycle is a group of
files of one crate that import each other, other than through the crate's root.
"""
import collections
import os
import re
import sys

SKIPPED = {"target", ".git", "node_modules"}
TEST_ATTRIBUTE = re.compile(r"^\s*#\[(?:\w+::)*test(?:\(.*\))?\]", re.M)
TEST_ONLY = re.compile(r"^\s*#\[cfg\((?:test|all\(test,.*\))\)\]$")
TEST_FILE = re.compile(r"^\s*#\[cfg\((?:test|all\(test,[^\n]*\))\)\]\n\s*(?:#\[[^\n]*\]\n\s*)*(?:pub(?:\([^)]*\))?\s+)?mod (\w+);", re.M)


def files_below(root):
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(set(folders) - SKIPPED)
        yield from (os.path.join(folder, name) for name in sorted(names))


def read(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def is_code_file(path):
    parts = path.split(os.sep)
    return not {"tests", "examples", "benches"} & set(parts[:-1]) and parts[-1] != "tests.rs"


def test_files(root):
    """Files of modules that are declared with `#[cfg(test)] mod name;`, and the folders below them."""
    found = []
    for path in files_below(root):
        if path.endswith(".rs"):
            folder, name = os.path.split(path)
            inside = folder if name in ("lib.rs", "main.rs", "mod.rs") else path[:-3]
            found += [os.path.join(inside, module) for module in TEST_FILE.findall(read(path))]
    return tuple(module + end for module in found for end in (".rs", os.sep))


def without_test_items(lines):
    """Drops items behind `#[cfg(test)]`. One with a body ends with a brace at the indentation of its first line (rustfmt)."""
    end, is_test = None, False
    for line in lines:
        if end is not None:
            end = None if line.rstrip() in end else end
        elif TEST_ONLY.match(line):
            is_test = True
        elif is_test:
            if line.strip().startswith("#["):
                continue
            indentation = line[: len(line) - len(line.lstrip())]
            if not line.rstrip().endswith((";", ",", "}")):
                end = [indentation + close for close in ("}", "};", "},", ")?;", ");")]
            is_test = False
        else:
            yield line


def code_lines(lines):
    """Lines that are neither blank nor comments."""
    count, in_block = 0, False
    for line in map(str.strip, lines):
        if in_block:
            in_block = "*/" not in line
        elif line.startswith("/*"):
            in_block = "*/" not in line
        elif line and not line.startswith("//"):
            count += 1
    return count


def crates(root):
    """Folder and name of each package, the innermost last."""
    found = {}
    for path in files_below(root):
        if os.path.basename(path) == "Cargo.toml":
            name = re.search(r'^\[package\]\s*(?:.*\n)*?name = "(.*?)"', read(path), re.M)
            if name:
                found[os.path.dirname(path)] = name.group(1)
    return dict(sorted(found.items(), key=lambda item: len(item[0])))


def module_name(source, path):
    parts = os.path.relpath(path, source)[:-3].split(os.sep)
    return "::".join(parts[:-1] if parts[-1] in ("mod", "lib", "main") else parts)


def expand(prefix, text):
    """The paths of a `use` declaration."""
    text = text.strip()
    group = re.match(r"^(.*?)\{(.*)\}$", text, re.S)
    if not group:
        yield (prefix + re.sub(r"\s+as\s+\w+$", "", text)).strip()
        return
    depth, item = 0, ""
    for char in group.group(2) + ",":
        depth += (char == "{") - (char == "}")
        if char == "," and depth == 0:
            if item.strip():
                yield from expand(prefix + group.group(1), item)
            item = ""
        else:
            item += char


def imports(source, modules):
    """For each module the others that it imports, `pub use` followed."""
    texts, exported = {}, {}
    for name, path in modules.items():
        text = "\n".join(without_test_items(read(path).split("\n")))
        texts[name] = re.sub(r"//[^\n]*", "", text)

    def absolute(module, path):
        if path.startswith("crate::"):
            return path[7:]
        if path.startswith("super::"):
            return ("::".join(module.split("::")[:-1]) + "::" + path[7:]).lstrip(":")
        return f"{module}::{path.removeprefix('self::')}".lstrip(":")

    for name, text in texts.items():
        for use in re.finditer(r"pub(?:\([^)]*\))?\s+use\s+([^;]+);", text):
            for path in expand("", re.sub(r"\s+", " ", use.group(1))):
                exported[name, path.split("::")[-1]] = absolute(name, path)

    def owner(path, depth=0):
        parts = path.split("::")
        at = next((at for at in range(len(parts), 0, -1) if "::".join(parts[:at]) in modules), 0)
        module, rest = "::".join(parts[:at]), parts[at:]
        target = exported.get((module, rest[0])) if rest else None
        return owner(target, depth + 1) if target and target != path and depth < 6 else module

    edges = collections.defaultdict(set)
    for name, text in texts.items():
        paths = {path for use in re.finditer(r"use\s+([^;]+);", text) for path in expand("", re.sub(r"\s+", " ", use.group(1)))}
        paths = {path for path in paths if path.startswith(("crate::", "super::"))}
        paths |= {match.group(0) for match in re.finditer(r"\bcrate::(?:\w+::)*\w+", text)}
        edges[name] = {owner(absolute(name, path)) for path in paths} - {name, ""}
    return edges


def cycles(edges):
    """Strongly connected groups of more than one module (Tarjan)."""
    index, low, stack, found = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in edges.get(node, ()):
            if other not in index:
                visit(other)
            if other in stack:
                low[node] = min(low[node], low[other])
        if low[node] == index[node]:
            at = stack.index(node)
            group, stack[at:] = stack[at:], []
            if len(group) > 1:
                found.append(sorted(group))

    sys.setrecursionlimit(10_000)
    for node in sorted(edges):
        if node not in index:
            visit(node)
    return sorted(found, key=len, reverse=True)


def main():
    root = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else ".")
    packages = crates(root)
    owner_of = lambda path: next((name for folder, name in reversed(packages.items()) if path.startswith(folder + os.sep)), "(none)")
    table = collections.defaultdict(collections.Counter)
    tests = test_files(root)
    for path in files_below(root):
        if path.endswith(".rs"):
            row, text = table[owner_of(path)], read(path)
            lines = text.split("\n")[: -1 if text.endswith("\n") else None]
            row["lines"] += len(lines)
            row["tests"] += len(TEST_ATTRIBUTE.findall(text))
            if is_code_file(os.path.relpath(path, root)) and not path.startswith(tests):
                code = list(without_test_items(lines))
                row["code"] += code_lines(code)
                row["unsafe"] += sum(len(re.findall(r"\bunsafe \{", line.split("//")[0])) for line in code)
        elif path.endswith((".c", ".h", ".S", ".sh")):
            table[owner_of(path)]["foreign"] += read(path).count("\n")
    print(f"{'crate':<22} {'code':>8} {'lines':>8} {'C, sh':>8} {'unsafe':>8} {'test functions':>15}")
    total = sum(table.values(), collections.Counter())
    for name, row in sorted(table.items(), key=lambda item: -item[1]["code"]) + [("all", total)]:
        print(f"{name:<22} {row['code']:>8} {row['lines']:>8} {row['foreign']:>8} {row['unsafe']:>8} {row['tests']:>15}")
    print("\nimport cycles:")
    for folder, name in packages.items():
        source = os.path.join(folder, "src")
        modules = {module_name(source, path): path for path in files_below(source) if path.endswith(".rs") and is_code_file(os.path.relpath(path, folder))}
        for group in cycles(imports(source, modules)):
            print(f"{len(group):>3} {name}: {', '.join(group)}")


if __name__ == "__main__":
    main()

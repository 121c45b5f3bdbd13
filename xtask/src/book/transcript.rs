//! Commands of a page with their expected output, and the files that the page shows.
//!
//! A `console` block contains commands after `$ `, continued after `> `, and their output. A block
//! below a line that consists of `` `NAME`: `` is the file with this name. In the output, `[..]`
//! matches any characters of a line, and a line `...` matches any number of lines.
//!
//! All commands of a page run in the same shell, because many start jobs or use pipes. trycmd runs
//! single programs without a shell. scrut has a shell, but its syntax for expected output would
//! appear on the pages, and it does not support files.

/// Step that a reader of the page performs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Types a command.
    Command { command: String, printed: Vec<String> },
    /// Writes a file.
    File { name: String, text: String },
}

/// Steps below one heading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Section {
    pub(super) heading: String,
    pub(super) steps: Vec<Step>,
}

/// Kind of the fenced block that a line belongs to.
enum FencedBlock {
    /// Text outside of any block.
    None,
    Console,
    File,
    Other,
}

impl Step {
    /// Returns the step as input for a shell, with a newline at the end.
    pub(super) fn script(&self) -> String {
        match self {
            Self::Command { command, .. } => format!("{command}\n"),
            Self::File { name, text } => format!("cat > {name} <<'END'\n{text}END\n"),
        }
    }

    pub(super) fn printed(&self) -> &[String] {
        match self {
            Self::Command { printed, .. } => printed,
            Self::File { .. } => &[],
        }
    }
}

/// Returns the sections of a page that have commands. Sections with nothing but files are left out.
pub(super) fn sections(page: &str) -> Result<Vec<Section>, String> {
    let mut sections = vec![Section { heading: String::new(), steps: Vec::new() }];
    let (mut block, mut before) = (FencedBlock::None, "");
    // A block in a list has the indentation of the list.
    let mut indent = 0;
    for line in page.lines() {
        if matches!(block, FencedBlock::None) {
            indent = line.find("```").filter(|at| line[..*at].trim().is_empty()).unwrap_or(0);
        }
        let kept = line.len() - line.trim_start().len();
        let line = &line[indent.min(kept)..];
        let steps = &mut sections.last_mut().ok_or("no section")?.steps;
        match (&mut block, line.strip_prefix("```")) {
            (FencedBlock::None, Some(language)) => {
                block = match (announced_file(before), language) {
                    (Some(name), _) => {
                        steps.push(Step::File { name: name.to_owned(), text: String::new() });
                        FencedBlock::File
                    }
                    (None, "console") => FencedBlock::Console,
                    (None, _) => FencedBlock::Other,
                }
            }
            (_, Some(_)) => block = FencedBlock::None,
            (FencedBlock::None, None) => {
                if let Some(heading) = line.strip_prefix('#') {
                    let heading = heading.trim_start_matches('#').trim().to_owned();
                    sections.push(Section { heading, steps: Vec::new() });
                }
            }
            (FencedBlock::Console, None) => add(steps, line)?,
            (FencedBlock::File, None) => {
                if let Some(Step::File { text, .. }) = steps.last_mut() {
                    text.push_str(line);
                    text.push('\n');
                }
            }
            (FencedBlock::Other, None) => {}
        }
        if !line.is_empty() {
            before = line;
        }
    }
    sections
        .retain(|section| section.steps.iter().any(|step| matches!(step, Step::Command { .. })));
    Ok(sections)
}

/// Returns the file name if a line announces a file.
fn announced_file(line: &str) -> Option<&str> {
    line.strip_prefix('`')?.strip_suffix("`:").filter(|name| !name.contains(['`', ' ']))
}

/// Adds a line of a console block.
fn add(steps: &mut Vec<Step>, line: &str) -> Result<(), String> {
    if let Some(command) = line.strip_prefix("$ ") {
        steps.push(Step::Command { command: command.to_owned(), printed: Vec::new() });
        return Ok(());
    }
    match (steps.last_mut(), line.strip_prefix("> ")) {
        (Some(Step::Command { command, printed }), Some(more)) if printed.is_empty() => {
            command.push('\n');
            command.push_str(more);
        }
        (Some(Step::Command { printed, .. }), _) => printed.push(line.to_owned()),
        _ => return Err(format!("a console block begins with `$ `: {line}")),
    }
    Ok(())
}

/// Returns whether the lines match the expected output.
pub(super) fn output_matches(expected: &[String], lines: &[&str]) -> bool {
    match expected.split_first() {
        None => lines.is_empty(),
        Some((line, rest)) if line == "..." => {
            (0..=lines.len()).any(|skipped| output_matches(rest, &lines[skipped..]))
        }
        Some((line, rest)) => lines.split_first().is_some_and(|(first, others)| {
            line_matches(line, first) && output_matches(rest, others)
        }),
    }
}

/// Returns whether a line matches a pattern.
fn line_matches(pattern: &str, line: &str) -> bool {
    let Some((first, rest)) = pattern.split_once("[..]") else { return pattern == line };
    let Some(mut line) = line.strip_prefix(first) else { return false };
    let mut parts: Vec<_> = rest.split("[..]").collect();
    let last = parts.pop().unwrap_or_default();
    for part in parts {
        match line.find(part) {
            Some(at) => line = &line[at + part.len()..],
            None => return false,
        }
    }
    line.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "\
# Title

```sh
not run
```

## First

```console
$ one > two
$ three \\
> four
five
  > six
```

`src/a.rs`:

```rust,no_run
fn main() {}
```

```console
$ cargo run
```

* within a list

  ```console
  $ listed
    indented
  ```

## Second

`b.txt`:

```text
b
```
";

    fn command(command: &str, printed: &[&str]) -> Step {
        let printed = printed.iter().map(|line| (*line).to_owned()).collect();
        Step::Command { command: command.to_owned(), printed }
    }

    #[test]
    fn commands_output_and_files() {
        let sections = sections(PAGE).unwrap();
        let file = Step::File { name: "src/a.rs".to_owned(), text: "fn main() {}\n".to_owned() };
        assert_eq!(file.script(), "cat > src/a.rs <<'END'\nfn main() {}\nEND\n");
        let steps = vec![
            command("one > two", &[]),
            command("three \\\nfour", &["five", "  > six"]),
            file,
            command("cargo run", &[]),
            command("listed", &["  indented"]),
        ];
        assert_eq!(sections, [Section { heading: "First".to_owned(), steps }]);
        assert!(super::sections("```console\nprinted\n```\n").is_err());
    }

    #[test]
    fn lines_are_compared_with_patterns() {
        let is = |expected: &[&str], printed: &str| {
            let expected: Vec<_> = expected.iter().map(|line| (*line).to_owned()).collect();
            output_matches(&expected, &printed.lines().collect::<Vec<_>>())
        };
        assert!(
            is(&["a[..]c"], "abcc")
                && is(&["a[..]"], "a")
                && is(&["[..]c"], "c")
                && is(&[""], "\n")
        );
        assert!(is(&["[..] b [..] d"], "a b c d") && is(&["[..]"], "\n") && is(&[], ""));
        assert!(
            !is(&["a[..]c"], "abcd")
                && !is(&["a"], "ab")
                && !is(&["[..]x"], "y")
                && !is(&["ab[..]bc"], "abc")
        );
        assert!(is(&["a", "...", "d"], "a\nb\nc\nd") && is(&["...", "d"], "d") && is(&["..."], ""));
        assert!(!is(&["a", "...", "d"], "a\nb") && !is(&["a"], "a\nb") && !is(&["a", "b"], "a"));
    }
}

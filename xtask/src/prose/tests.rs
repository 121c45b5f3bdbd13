use std::path::{Path, PathBuf};
use std::process::Command;

use super::list::{Banned, parse_allowed, parse_banned};
use super::{findings, list, of_file, text};

/// The commit whose wording the list was made for.
const FORMER: &str = "02b5a5a5611d9cdf18bd9ccf883d8df9122bb677";

fn some() -> Vec<Banned> {
    parse_banned("# comment\n\nfox\tanimal\nbrown fox\tbear\nhunt*\tsearch\n").unwrap()
}

/// Line and words of each finding.
fn found(path: &str, text: &str) -> Vec<(usize, String)> {
    of_file(path, text, &some()).into_iter().map(|finding| (finding.line, finding.found)).collect()
}

fn at(line: usize, words: &str) -> (usize, String) {
    (line, words.to_owned())
}

#[test]
fn a_finding_names_place_words_and_term() {
    let findings = of_file("docs/a.md", "A quick\nBrown `fox`.\n", &some());
    let lines: Vec<_> = findings.iter().map(ToString::to_string).collect();
    assert_eq!(lines, ["docs/a.md:2: \"brown fox\": use \"bear\"", "docs/a.md:2: \"fox\": use \"animal\""]);
}

#[test]
fn phrases_go_on_over_lines_and_end_with_paragraphs() {
    assert_eq!(found("a.md", "a brown\nfox"), [at(1, "brown fox"), at(2, "fox")]);
    assert_eq!(found("a.md", "a brown\n\nfox"), [at(3, "fox")]);
    assert_eq!(found("a.md", "the fox's hunter, foxes"), [at(1, "fox"), at(1, "hunter")]);
}

#[test]
fn block_quotes_are_not_checked() {
    assert_eq!(found("a.md", "> the fox\nthe hunt"), [at(2, "hunt")]);
    assert_eq!(found("a.rs", "//! > the fox\n//! the hunt"), [at(2, "hunt")]);
}

#[test]
fn comments_strings_and_names_of_rust_are_checked() {
    assert_eq!(found("a.rs", "/// a brown\n/// fox\n"), [at(1, "brown fox"), at(2, "fox")]);
    assert_eq!(found("a.rs", "// brown\nlet a = 1; // fox\n"), [at(2, "fox")]);
    assert_eq!(found("a.rs", "/* a /* nested */ fox */ let fox = 1;"), [at(1, "fox")]);
    assert_eq!(found("a.rs", "let a = \"\\\"a\\nfox\"; let b = fox;"), [at(1, "fox")]);
    assert_eq!(found("a.rs", "let a = r#\"a \" fox\"#; let c = c\"fox\";"), [at(1, "fox"), at(1, "fox")]);
    assert_eq!(
        found("a.rs", "fn brown_fox() {}\npub struct BrownFox;"),
        [at(1, "brown fox"), at(1, "fox"), at(2, "brown fox"), at(2, "fox")]
    );
    assert_eq!(
        found("a.rs", "const fn hunts() { fox() }\nstatic FOX: u8 = 0;"),
        [at(1, "hunts"), at(2, "fox")]
    );
}

#[test]
fn data_and_code_of_rust_are_not_checked() {
    assert_eq!(found("a.rs", "let fox = b\"fox\"; let a = br#\"fox\"#; fox(b'\"');"), []);
    // A quotation mark in a character literal begins no string, and a lifetime no character literal.
    assert_eq!(
        found("a.rs", "let a = '\"'; let b = '\\''; fn f<'a>(fox: &'a str) {} // the hunt"),
        [at(1, "hunt")]
    );
}

#[test]
fn c_and_scripts_are_checked() {
    assert_eq!(
        found("a.c", "/* the brown\n * fox */ int fox = 'f';\nputs(\"fox\");"),
        [at(1, "brown fox"), at(2, "fox"), at(3, "fox")]
    );
    assert_eq!(found("a.sh", "# the fox\necho fox"), [at(1, "fox"), at(2, "fox")]);
    assert_eq!(found("a.tsv", "fox"), []);
}

#[test]
fn lists_with_missing_fields_are_errors() {
    for wrong in ["fox", "fox\t", "\tanimal", "fox\tanimal\tmore"] {
        assert!(parse_banned(wrong).is_err(), "{wrong:?}");
    }
    for wrong in ["a.rs\tfox", "a.rs\tfox\t", "a.rs"] {
        assert!(parse_allowed(wrong).is_err(), "{wrong:?}");
    }
}

#[test]
fn exceptions_cover_a_file_or_a_folder() {
    let list = parse_allowed("a/b.rs\tfox\tits name\nc/\tfox\ttheir name\n").unwrap();
    assert!(list[0].covers("a/b.rs", "fox") && !list[0].covers("a/b.rs", "hunt*"));
    assert!(!list[0].covers("a/b.rs/c", "fox") && !list[0].covers("b.rs", "fox"));
    assert!(list[1].covers("c/d/e.rs", "fox") && !list[1].covers("cc/d.rs", "fox"));
}

#[test]
fn every_exception_is_of_a_banned_phrase() {
    let banned = list::banned().unwrap();
    for entry in list::allowed().unwrap() {
        assert!(
            banned.iter().any(|banned| banned.phrase == entry.phrase),
            "{}: {}",
            entry.path,
            entry.phrase
        );
    }
}

/// The rows of `former.tsv`.
fn former() -> impl Iterator<Item = (&'static str, &'static str)> {
    let rows = include_str!("../../prose/former.tsv").lines().filter(|line| !line.starts_with('#'));
    rows.map(|row| row.split_once('\t').expect("a file and its words"))
}

/// Whether a banned phrase begins within each place of `file` that has these words; `None` if there is no such place.
fn is_found(path: &str, file: &str, wanted: &str, banned: &[Banned]) -> Option<bool> {
    let wanted: Vec<_> = text::split(wanted).collect();
    let passages = text::passages(path, file);
    let places = passages.iter().flat_map(|passage| {
        let starts = (0..passage.len()).filter(|start| {
            let rest = passage[*start..].iter().map(|word| &word.text);
            rest.take(wanted.len()).eq(wanted.iter())
        });
        starts.map(move |start| (passage, start))
    });
    let results: Vec<_> = places
        .map(|(passage, start)| {
            (start..start + wanted.len())
                .any(|word| banned.iter().any(|entry| entry.begins(&passage[word..start + wanted.len()])))
        })
        .collect();
    (!results.is_empty()).then(|| results.into_iter().all(|found| found))
}

#[test]
fn every_former_phrase_is_banned() {
    let banned = list::banned().unwrap();
    for (path, words) in former() {
        // As a comment, a message or Markdown; a name as itself.
        let markdown = is_found("a.md", words, words, &banned);
        assert_eq!(markdown, Some(true), "{path}: {words}");
    }
    assert_eq!(
        is_found("a.md", "transfers a file with every RDMA operation", "transfers a file", &banned),
        Some(false)
    );
}

/// A folder that is removed on drop.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The tree of [`FORMER`]; `None` if there is no git or the repository does not have the commit.
fn former_tree() -> Option<Folder> {
    let folder = Folder(std::env::temp_dir().join(format!("uiw-prose-{}", std::process::id())));
    std::fs::create_dir_all(&folder.0).expect("a temporary folder");
    let archive = folder.0.join("tree.tar");
    let mut git = Command::new("git");
    git.args(["archive", "--format=tar", "-o"])
        .arg(&archive)
        .arg(FORMER)
        .current_dir(crate::workspace::root());
    if !git.output().is_ok_and(|output| output.status.success()) {
        return None;
    }
    let tar =
        Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(&folder.0).status().expect("tar starts");
    assert!(tar.success());
    Some(folder)
}

#[test]
fn every_former_phrase_is_found_in_its_tree() {
    let Some(tree) = former_tree() else {
        uiw_interop::skip("the commit 02b5a5a");
        return;
    };
    let banned = list::banned().unwrap();
    let (all, _) = findings(&tree.0).unwrap();
    for (path, words) in former() {
        let file = std::fs::read_to_string(tree.0.join(path)).unwrap();
        assert_eq!(is_found(path, &file, words, &banned), Some(true), "{path}: {words}");
        assert!(all.iter().any(|finding| Path::new(&finding.path) == Path::new(path)), "{path}");
    }
}

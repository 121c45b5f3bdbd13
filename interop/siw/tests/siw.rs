//! Runs the short set of the matrix on one guest, one test per case and direction. libtest's
//! harness is not used, because the guest must be shut down after the last test, and the tests run
//! one after the other. The output has the format of libtest.

use std::process::ExitCode;
use std::time::Instant;
use uiw_siw::Error;
use uiw_siw::bench::Bench;
use uiw_siw::case::{Case, Direction, Setting, Verdict};
use uiw_siw::cases;
use uiw_siw::test_vm::TestVm;

struct SiwTest {
    name: String,
    case: Case,
    direction: Direction,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let filters: Vec<&String> =
        arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    let exact = has("--exact");
    let chosen = |name: &str| {
        filters.is_empty()
            || filters
                .iter()
                .any(|filter| if exact { name == *filter } else { name.contains(filter.as_str()) })
    };
    let all = tests();
    let count = all.len();
    let tests: Vec<SiwTest> = all.into_iter().filter(|test| chosen(&test.name)).collect();
    if has("--list") {
        tests.iter().for_each(|test| println!("{}: test", test.name));
        return ExitCode::SUCCESS;
    }
    if has("--ignored") {
        return ExitCode::SUCCESS;
    }
    run(&tests, count - tests.len())
}

fn tests() -> Vec<SiwTest> {
    let mut tests = Vec::new();
    for directions in [Direction::OURS, Direction::THEIRS] {
        for case in cases::all().into_iter().filter(|case| case.short) {
            if case.directions.contains(&directions[0]) {
                let way = if directions[0] == Direction::Ours { "from_uiw" } else { "from_siw" };
                let name = format!("siw::{way}::{}", words(&case.name));
                tests.push(SiwTest { name, case, direction: directions[0] });
            }
        }
    }
    tests
}

/// Converts the name of a case to the form of a function name.
fn words(name: &str) -> String {
    let letters: String = name
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { ' ' })
        .collect();
    letters.split_whitespace().collect::<Vec<_>>().join("_")
}

fn run(tests: &[SiwTest], filtered: usize) -> ExitCode {
    println!("\nrunning {} test{}", tests.len(), if tests.len() == 1 { "" } else { "s" });
    let begun = Instant::now();
    let mut failures = Vec::new();
    if !tests.is_empty() {
        match bench() {
            Ok(mut bench) => {
                let mut known = 0;
                for test in tests {
                    if let Some(why) = one(&mut bench, test, &mut known) {
                        failures.push((&test.name, why));
                    }
                }
            }
            Err(Error::Missing(what)) => tests.iter().for_each(|test| skip(&test.name, &what)),
            Err(error) => {
                tests.iter().for_each(|test| println!("test {} ... FAILED", test.name));
                failures.extend(tests.iter().map(|test| (&test.name, error.to_string())));
            }
        }
    }
    if !failures.is_empty() {
        println!("\nfailures:\n");
        failures.iter().for_each(|(name, why)| println!("---- {name} stdout ----\n{why}\n"));
    }
    let (word, failed) = (if failures.is_empty() { "ok" } else { "FAILED" }, failures.len());
    println!(
        "\ntest result: {word}. {} passed; {failed} failed; 0 ignored; 0 measured; {filtered} filtered out; finished in {:.2}s\n",
        tests.len() - failed,
        begun.elapsed().as_secs_f64()
    );
    if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(101) }
}

fn bench() -> uiw_siw::Result<Bench> {
    // The virtual machine is booted first; nothing needs to be built if that fails.
    let vm = TestVm::boot(None)?;
    Ok(Bench::new(vm, uiw_interop::stock::uiw().to_owned()))
}

/// Runs one test and returns the reason if it failed. `known` counts failures caused by known
/// faults of siw.
fn one(bench: &mut Bench, test: &SiwTest, known: &mut usize) -> Option<String> {
    match test.case.run(bench, &Setting::USUAL, test.direction).limited(*known) {
        Verdict::Pass(_) => {
            println!("test {} ... ok", test.name);
            None
        }
        Verdict::Known { quirk, seen } => {
            *known += 1;
            println!(
                "KNOWN: {}: {seen} (QUIRKS.md, \"{quirk}\")\ntest {} ... ok",
                test.name, test.name
            );
            None
        }
        Verdict::NotApplicable(what) => {
            skip(&test.name, &what);
            None
        }
        Verdict::Fail(why) => {
            println!("test {} ... FAILED", test.name);
            Some(why)
        }
    }
}

/// Records a skipped test. libtest has no such result, so the test counts as passed here and as
/// skipped where the log is read.
fn skip(name: &str, what: &str) {
    uiw_interop::skip_test(name, what);
    println!("test {name} ... ok");
}

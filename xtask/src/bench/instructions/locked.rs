//! Locked instructions of an object, from objdump's disassembly: those with a `lock` prefix, and `xchg` with memory, which locks without
//! one (Intel SDM volume 2, XCHG).

use super::callgrind::Profile;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The objects disassembled so far.
#[derive(Default)]
pub(super) struct Objects {
    read: HashMap<PathBuf, Object>,
}

/// Whether the instruction at each address is locked.
type Object = BTreeMap<u64, bool>;

impl Objects {
    /// Counts the locked instructions that a thread executed.
    ///
    /// # Errors
    /// When objdump fails, or has no address that callgrind names.
    pub(super) fn locked(&mut self, profile: &Profile) -> Result<u64, String> {
        let mut locked = 0;
        for (file, executed) in &profile.executed {
            // The rest is the vDSO and procedure linkage tables, which callgrind gives no object.
            if !file.is_file() {
                continue;
            }
            let object = match self.read.get(file) {
                Some(object) => object,
                None => self.read.entry(file.clone()).or_insert(disassemble(file)?),
            };
            for (address, count) in executed {
                match object.get(address) {
                    Some(true) => locked += count,
                    Some(false) => {}
                    None => {
                        return Err(format!(
                            "{}: objdump has no instruction at {address:#x}",
                            file.display()
                        ));
                    }
                }
            }
        }
        Ok(locked)
    }
}

fn disassemble(file: &Path) -> Result<Object, String> {
    let output = Command::new("objdump")
        .args(["--disassemble", "--no-show-raw-insn"])
        .arg(file)
        .output()
        .map_err(|error| format!("objdump: {error}; on Debian `apt-get install binutils`"))?;
    if !output.status.success() {
        return Err(format!("objdump: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().filter_map(instruction).collect())
}

/// The address of a line's instruction, and whether it is locked.
fn instruction(line: &str) -> Option<(u64, bool)> {
    let (address, text) = line.trim_start().split_once(":\t")?;
    let address = u64::from_str_radix(address, 16).ok()?;
    let mut words = text.split_whitespace();
    // Prefixes of lock elision stand in front.
    let mnemonic = words.find(|word| !matches!(*word, "xacquire" | "xrelease"))?;
    let locked = match mnemonic {
        "lock" => true,
        // Operands in memory have a parenthesis, a segment with its colon, or no % in front.
        _ if mnemonic.starts_with("xchg") => {
            let operands = words.next().unwrap_or_default();
            operands.contains(['(', ':']) || operands.split(',').any(|operand| !operand.starts_with('%'))
        }
        _ => false,
    };
    Some((address, locked))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locked_instructions_are_recognised() {
        for (text, locked) in [
            ("lock cmpxchg %ecx,(%rdi)", true),
            ("lock xadd %rax,0x10(%rbx)", true),
            ("xacquire lock cmpxchg %ecx,(%rdi)", true),
            ("xchg   %al,0x28(%rbx)", true),
            ("xchg   %eax,%fs:0x10", true),
            ("xchg   %rax,0x4000", true),
            ("xchg   %ax,%ax", false),
            ("xchg   %r8,%r11", false),
            ("cmpxchg %ecx,(%rdi)", false),
            ("mov    %rax,(%rdi)", false),
        ] {
            assert_eq!(instruction(&format!("  3df40:\t{text}")), Some((0x3df40, locked)), "{text}");
        }
    }

    #[test]
    fn headings_are_no_instructions() {
        for line in ["", "000000000003df40 <exit@@GLIBC_2.2.5>:", "Disassembly of section .text:"] {
            assert_eq!(instruction(line), None, "{line}");
        }
    }

    #[test]
    fn an_unknown_address_is_an_error() {
        let file = std::env::current_exe().unwrap();
        let profile = Profile { executed: [(file.clone(), [(1, 1)].into())].into(), ..Profile::default() };
        let mut objects = Objects::default();
        objects.read.insert(file, Object::from([(0, true)]));
        assert!(objects.locked(&profile).unwrap_err().contains("no instruction at 0x1"));
    }
}

//! Runs a setuid program of root that uses our libraries in the environment of another user.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use uiw_cabi_core::settings::VARIABLES;
use uiw_interop::stock::{Libraries, Running, User, compile, ordinary};

const SECRET: &str = "root:$6$salt$hash:19000:0:99999:7:::\n";

struct SetuidProgram {
    libraries: Libraries,
    program: PathBuf,
    /// Directory that only root can enter.
    private: PathBuf,
}

impl SetuidProgram {
    /// Returns `None`, and counts the test as skipped, if the tests do not run as root or the
    /// kernel does not give the program more rights.
    #[track_caller]
    fn new() -> Option<Self> {
        if ordinary()? != User::Nobody {
            uiw_interop::skip("root");
            return None;
        }
        let libraries = Libraries::get();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stock/c/privileged.c");
        // The loader ignores LD_LIBRARY_PATH for a setuid program.
        let rpath = format!("-Wl,-rpath,{}", libraries.folder().display());
        let program = compile(&libraries, &source, &["-Wall", "-Wextra", "-Werror", &rpath])?;
        fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
        let private = libraries.folder().join("private");
        fs::create_dir(&private).unwrap();
        fs::set_permissions(&private, fs::Permissions::from_mode(0o700)).unwrap();
        for name in ["victim", "shadow"] {
            fs::write(private.join(name), SECRET).unwrap();
            fs::set_permissions(private.join(name), fs::Permissions::from_mode(0o600)).unwrap();
        }
        let setuid = Self { libraries, program, private };
        if !setuid.run(&[]).contains("secure=1 ") {
            uiw_interop::skip("a file system with setuid programs");
            return None;
        }
        Some(setuid)
    }

    /// Runs the program with `variables` and returns its output.
    fn run(&self, variables: &[(&str, &str)]) -> String {
        let mut command = self.libraries.command(User::Nobody, &self.program);
        command.env_remove("UIW_COUNTERS").envs(variables.iter().copied());
        Running::start(command).end().well().said.clone()
    }

    /// Asserts that no file was written or created.
    fn is_untouched(&self) {
        let names = fs::read_dir(&self.private).unwrap();
        let mut names: Vec<_> =
            names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        assert_eq!(names, ["shadow", "victim"]);
        for name in names {
            assert_eq!(fs::read_to_string(self.private.join(name)).unwrap(), SECRET);
        }
    }
}

#[test]
fn privileged_program_ignores_variables() {
    let Some(setuid) = SetuidProgram::new() else { return };
    let file = |name: &str| setuid.private.join(name).to_str().unwrap().to_owned();
    let victim = file("victim");
    for variable in VARIABLES {
        let value = match variable.name {
            "UIW_PERSONA" => "roce".to_owned(),
            "UIW_LOG" => "uiw_verbs=trace".to_owned(),
            "UIW_LLP" => "packet:lo,ip=10.0.0.1/24".to_owned(),
            "UIW_COUNTERS" => setuid.private.to_str().unwrap().to_owned(),
            "UIW_KEYLOG" => file("new"),
            "UIW_PCAP" => format!("{victim},append"),
            "UIW_TLS" => continue,
            _ => victim.clone(),
        };
        let said = setuid.run(&[(variable.name, &value)]);
        assert!(said.contains(" errno=0"), "{}: {said}", variable.name);
        let expected = match variable.name {
            "UIW_PERSONA" => String::new(),
            _ => format!(
                "uiw: ignored, because this program has more rights than its user (setuid, setgid or capabilities): {}\n",
                variable.name
            ),
        };
        let (own, others): (Vec<_>, Vec<_>) =
            said.lines().partition(|line| line.starts_with("secure="));
        let others: String = others.iter().map(|line| format!("{line}\n")).collect();
        assert_eq!((own.len(), others), (1, expected), "{}", variable.name);
        setuid.is_untouched();
    }
    let said = setuid.run(&[("UIW_PCAP", &victim), ("UIW_CRC", "off")]);
    assert!(said.contains(": UIW_CRC, UIW_PCAP\n"), "{said}");
    setuid.is_untouched();
}

#[test]
fn privileged_program_refuses_tls() {
    let Some(setuid) = SetuidProgram::new() else { return };
    let shadow = setuid.private.join("shadow").to_str().unwrap().to_owned();
    let said = setuid.run(&[("UIW_TLS", &shadow)]);
    assert!(said.contains("errno=1"), "EPERM: {said}");
    let why = "uiw: UIW_TLS is refused, because this program has more rights than its user";
    assert!(said.contains(why), "{said}");
    assert!(!said.contains("salt"), "{said}");
    setuid.is_untouched();
}

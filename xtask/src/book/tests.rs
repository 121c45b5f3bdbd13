use super::page::{self, LinkError, Page};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

const TEXT: &str = "\
# One Page

[two](two.md#a-heading-of-it), [the same](two.md), [`src/a.rs`](../src/a.rs), [a file](../src/a.rs), [below](#one-page),
[elsewhere](https://example.com/x.md), `[no](link.md)`.

```
[no](link.md)
```
";

fn chapters() -> BTreeMap<PathBuf, String> {
    [("docs/one.md", "one.md"), ("docs/two.md", "second.md")]
        .map(|(path, name)| (PathBuf::from(path), name.to_owned()))
        .into()
}

#[test]
fn page_links_have_book_names() {
    let page = Page::new(TEXT.to_owned());
    let expected = TEXT
        .replace("(two.md#a-heading-of-it)", "(second.md#a-heading-of-it)")
        .replace("[the same](two.md)", "[the same](second.md)")
        .replace("[`src/a.rs`](../src/a.rs)", "`src/a.rs`")
        .replace("[a file](../src/a.rs)", "a file (`src/a.rs`)");
    assert_eq!(page.rewritten(Path::new("docs/one.md"), &chapters()), expected);
}

#[test]
fn dead_link_named() {
    let root = std::env::temp_dir().join(format!("uiw-book-{}", std::process::id()));
    fs::create_dir_all(root.join("docs")).unwrap();
    for (name, text) in [("one.md", "# One"), ("two.md", "## A heading: of `it`, 2")] {
        fs::write(root.join("docs").join(name), text).unwrap();
    }
    let documents = [("docs/one.md", "# One"), ("docs/two.md", "## A heading: of `it`, 2")]
        .map(|(path, text)| (PathBuf::from(path), Page::new(text.to_owned())))
        .into();
    let check = |link: &str| page::check(&root, Path::new("docs/one.md"), link, &documents);
    assert_eq!(check("two.md#a-heading-of-it-2"), Ok(()));
    assert_eq!(check("#one"), Ok(()));
    assert_eq!(check("three.md"), Err(LinkError::File("three.md".to_owned())));
    assert_eq!(check("two.md#one"), Err(LinkError::Heading("two.md#one".to_owned())));
    assert_eq!(check("../../etc/passwd"), Err(LinkError::Outside("../../etc/passwd".to_owned())));
    fs::remove_dir_all(&root).unwrap();
}

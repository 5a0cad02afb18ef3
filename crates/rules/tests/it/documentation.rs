//! The rules that the documentation shows are rules.

use tidegate_rules::RuleSet;

const PAGES: [(&str, &str); 3] = [
    ("README.md", include_str!("../../../../README.md")),
    ("docs/guide/rules.md", include_str!("../../../../docs/guide/rules.md")),
    ("docs/guide/blocking.md", include_str!("../../../../docs/guide/blocking.md")),
];

#[test]
fn every_rules_file_on_a_page_can_be_loaded() {
    for (page, text) in PAGES {
        let blocks = text.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next());
        let documents: Vec<&str> = blocks.filter(|block| block.starts_with("rules:")).collect();
        assert!(!documents.is_empty(), "{page} shows no rules");
        for document in documents {
            if let Err(errors) = RuleSet::parse(page, document) {
                panic!("{errors}\n{document}");
            }
        }
    }
}

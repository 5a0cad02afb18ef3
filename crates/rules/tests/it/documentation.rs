//! Checks that the rules documents in the documentation are valid.

use tidegate_rules::RuleSet;

const PAGES: [(&str, &str); 3] = [
    ("README.md", include_str!("../../../../README.md")),
    ("docs/guide/rules.md", include_str!("../../../../docs/guide/rules.md")),
    ("docs/guide/blocking.md", include_str!("../../../../docs/guide/blocking.md")),
];

#[test]
fn rules_documents_in_the_documentation_are_valid() {
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

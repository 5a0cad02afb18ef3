//! The recipes of the guide: each is a file that is enforced as its page says.

use std::path::Path;

use tidegate::{Decision, Limiter, ManualClock, Request, RuleSet, Span};
use tidegate_testkit::{Flavour, Tool, lacking};

use crate::guide::{assert_as_the_page_says, root};
use crate::kit::run;

const PAGE: &str = include_str!("../../../../docs/guide/recipes.md");

/// Where each recipe is on the page, and its file.
const RECIPES: [(&str, &str); 7] = [
    ("Login", "login"),
    ("Signup", "signup"),
    ("Payments", "payments"),
    ("Plans", "plans"),
    ("Language models", "language-models"),
    ("Webhooks", "webhooks"),
    ("Scraping", "scraping"),
];

fn read(name: &str) -> String {
    let path = root().join(format!("docs/guide/recipes/{name}.yaml"));
    std::fs::read_to_string(path).unwrap()
}

/// A recipe that is enforced in this process, on a clock of the test's.
struct Recipe {
    limiter: Limiter,
    time: ManualClock,
    tokio: tokio::runtime::Runtime,
}

impl Recipe {
    fn named(name: &str) -> Self {
        let rules = RuleSet::parse(name, &read(name)).unwrap();
        let time = ManualClock::default();
        let limiter = Limiter::builder().rules(rules).clock(time.clock()).build();
        let tokio = tokio::runtime::Builder::new_current_thread().build().unwrap();
        Self { limiter, time, tokio }
    }

    fn ask(&self, cost: u64, attributes: &[(&str, &str)]) -> Decision {
        let mut request = Request::new().cost(cost);
        for (name, value) in attributes {
            request.insert(*name, *value).unwrap();
        }
        self.tokio.block_on(self.limiter.check(&request))
    }

    fn admits(&self, attributes: &[(&str, &str)]) -> bool {
        self.ask(1, attributes).is_allowed()
    }

    /// How many of so many requests in a row are admitted.
    fn admitted(&self, of: usize, attributes: &[(&str, &str)]) -> usize {
        (0..of).filter(|_| self.admits(attributes)).count()
    }
}

#[test]
fn every_recipe_is_a_file_that_the_page_shows_as_it_is() {
    let files = std::fs::read_dir(root().join("docs/guide/recipes")).unwrap();
    assert_eq!(files.count(), RECIPES.len());
    let mut rest = PAGE;
    for (heading, name) in RECIPES {
        let (_, part) = rest.split_once(&format!("\n## {heading}\n")).unwrap();
        let (_, block) = part.split_once("\n```yaml\n").unwrap();
        assert_eq!(block.split("```").next().unwrap(), read(name), "{heading}");
        let path = root().join(format!("docs/guide/recipes/{name}.yaml"));
        let (code, _, notes) = run(&["validate", path.to_str().unwrap()]);
        assert_eq!(code, 0, "{notes}");
        rest = part;
    }
}

/// A number on the page that is a port of the guide's would be replaced: recipes have none.
#[test]
fn every_command_on_the_page_prints_what_it_says() {
    for (heading, name) in RECIPES {
        let needs_redis = read(name).contains("on_store_failure: deny");
        if !needs_redis || !lacking(&[Tool::Server(Flavour::Redis)]) {
            assert_as_the_page_says(PAGE, heading);
        }
    }
}

#[test]
fn login_slows_down_who_guesses_and_blocks_who_goes_on() {
    let recipe = Recipe::named("login");
    let attempt = |ip: &str, user: &str| {
        recipe.ask(1, &[("path", "/login"), ("method", "POST"), ("ip", ip), ("user", user)])
    };
    // One account, many addresses.
    let tries = (0..6).map(|index| attempt(&format!("192.0.2.{index}"), "ann").is_allowed());
    assert_eq!(tries.filter(|allowed| *allowed).count(), 5);
    assert!(attempt("192.0.2.1", "bob").is_allowed());
    // Many accounts, one address.
    let tries = (0..21).map(|index| attempt("198.51.100.7", &format!("u{index}")).is_allowed());
    assert_eq!(tries.filter(|allowed| *allowed).count(), 20);
    assert!(attempt("198.51.100.8", "u1").is_allowed());
    // One denial so far; the hundredth blocks.
    for _ in 1..100 {
        assert!(attempt("198.51.100.7", "eve").block().is_none());
    }
    assert!(attempt("198.51.100.7", "eve").block().is_some());
    assert!(!recipe.admits(&[("path", "/anything"), ("ip", "198.51.100.7")]), "blocked everywhere");
    recipe.time.advance(Span::HOUR);
    assert!(attempt("198.51.100.7", "u1").is_allowed());
}

#[test]
fn signup_takes_ten_in_any_hour_from_one_address() {
    let recipe = Recipe::named("signup");
    let from = |ip: &'static str| [("path", "/signup"), ("method", "POST"), ("ip", ip)];
    // Half of them before an hour ends, half of them after it has begun.
    recipe.time.advance(Span::from_secs(3_000));
    assert_eq!(recipe.admitted(5, &from("192.0.2.7")), 5);
    recipe.time.advance(Span::from_secs(1_200));
    assert_eq!(recipe.admitted(6, &from("192.0.2.7")), 5, "the eleventh in the hour is denied");
    assert!(recipe.admits(&from("192.0.2.8")), "another address is not");
    let wait = recipe.ask(1, &from("192.0.2.7")).retry_after().unwrap();
    assert_eq!(wait, Span::from_secs(2_400), "until the first is an hour old");
    recipe.time.advance(wait);
    assert_eq!(recipe.admitted(9, &from("192.0.2.7")), 5);
}

#[test]
fn payments_are_limited_one_by_one_while_the_store_answers() {
    let recipe = Recipe::named("payments");
    let pay = [("path", "/payments/cards"), ("method", "POST"), ("user", "ann")];
    assert_eq!(recipe.admitted(9, &pay), 5);
    let rules = recipe.limiter.rules();
    use tidegate::rule::OnStoreFailure::{Allow, Deny};
    assert_eq!(rules.rule("payments").unwrap().on_store_failure(), Deny);
    assert_eq!(rules.rule("products").unwrap().on_store_failure(), Allow);
}

#[test]
fn a_plan_gets_what_it_pays_for() {
    let recipe = Recipe::named("plans");
    for (key, plan, wanted) in [
        ("k1", "free", 20),
        ("k2", "pro", 200),
        ("k3", "enterprise", 5_000),
        ("k4", "unheard-of", 20),
        ("launch-partner", "free", 2_000),
    ] {
        let client = [("path", "/v1/orders"), ("api_key", key), ("claim.plan", plan)];
        assert_eq!(recipe.admitted(wanted + 5, &client), wanted, "{plan}");
        recipe.time.advance(Span::SECOND);
        let again = if plan == "enterprise" { 1_000 } else { wanted };
        assert_eq!(recipe.admitted(again + 5, &client), again, "{plan}, a second later");
    }
}

#[test]
fn a_budget_of_tokens_is_reserved_and_settled() {
    let recipe = Recipe::named("language-models");
    let ann = [("path", "/v1/chat/1"), ("user", "ann"), ("team", "blue")];
    let bob = [("path", "/v1/chat/2"), ("user", "bob"), ("team", "blue")];
    let left = |decision: &Decision| {
        let team =
            decision.rule_outcomes().iter().find(|policy| &*policy.rule == "tokens-per-team");
        team.unwrap().outcome.remaining
    };
    assert!(recipe.ask(400_000, &ann).is_allowed());
    assert!(!recipe.ask(400_000, &ann).is_allowed());
    assert_eq!(left(&recipe.ask(0, &bob)), 9_600_000, "a denial takes nothing from the team");
    // The answer took 50,000.
    let request = Request::new().cost(350_000).with("user", "ann").unwrap();
    let request = request.with("team", "blue").unwrap().with("path", "/v1/chat/1").unwrap();
    let claim =
        tidegate::CheckRequest { request: &request, target: tidegate::CheckTarget::AllMatching };
    recipe.tokio.block_on(recipe.limiter.refund_latest(claim)).unwrap();
    assert_eq!(left(&recipe.ask(0, &bob)), 9_950_000);
    assert!(recipe.ask(450_000, &ann).is_allowed());
    assert!(!recipe.ask(1, &ann).is_allowed());
    let pro = [&ann[..], &[("claim.plan", "pro")]].concat();
    assert!(!recipe.ask(1, &pro).is_allowed(), "who moves up keeps what part of it was spent");
    recipe.time.advance(Span::DAY);
    assert!(recipe.ask(5_000_000, &pro).is_allowed());
}

#[test]
fn webhooks_are_told_when_their_turn_is() {
    let recipe = Recipe::named("webhooks");
    let to = |host: &'static str| [("host", host)];
    for place in 0..51 {
        let decision = recipe.ask(1, &to("hooks.example.com"));
        assert!(decision.is_allowed());
        assert_eq!(decision.delay(), Span::from_millis(200 * place));
    }
    let denied = recipe.ask(1, &to("hooks.example.com"));
    assert_eq!(denied.retry_after(), Some(Span::from_millis(200)));
    assert_eq!(recipe.ask(1, &to("other.example.com")).delay(), Span::ZERO);
}

#[test]
fn scraping_ends_with_a_block_and_reading_does_not() {
    let recipe = Recipe::named("scraping");
    let get =
        |path: &'static str, ip: &'static str| [("method", "GET"), ("path", path), ("ip", ip)];
    assert_eq!(recipe.admitted(12, &get("/search", "192.0.2.7")), 10);
    assert!(recipe.admits(&get("/products/1", "192.0.2.7")), "reading goes on");
    let scraper = get("/products/1", "198.51.100.7");
    assert_eq!(recipe.admitted(120 + 359, &scraper), 120);
    assert!(recipe.ask(1, &scraper).block().is_none(), "the last denial that only counts");
    assert!(recipe.ask(1, &scraper).block().is_some());
    recipe.time.advance(Span::from_secs(6 * 3_600));
    assert!(recipe.admits(&scraper));
    assert_eq!(recipe.admitted(1_000, &get("/products/1", "10.1.2.3")), 1_000, "our own crawler");
}

#[test]
fn recipes_are_linked_where_people_look() {
    for page in ["README.md", "rules.md"] {
        let text = std::fs::read_to_string(root().join("docs/guide").join(page)).unwrap();
        assert!(text.contains("](recipes.md"), "{page}");
    }
    assert!(Path::new(&root().join("docs/reference/rules.md")).exists());
}

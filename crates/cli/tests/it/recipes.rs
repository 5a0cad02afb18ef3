//! Recipes of the guide: each rules file behaves as its page describes.

use std::path::Path;

use tidegate::{Decision, Limiter, ManualClock, Request, RuleSet, Span};
use tidegate_testkit::{Flavour, Tool, lacking};

use crate::guide::{assert_section_output, repository_root};
use crate::kit::run;

const PAGE: &str = include_str!("../../../../docs/guide/recipes.md");

/// Heading of each recipe on the page, and its file name.
const RECIPES: [(&str, &str); 7] = [
    ("Login", "login"),
    ("Signup", "signup"),
    ("Payments", "payments"),
    ("Plans", "plans"),
    ("Language models", "language-models"),
    ("Webhooks", "webhooks"),
    ("Scraping", "scraping"),
];

fn recipe_text(name: &str) -> String {
    let path = repository_root().join(format!("docs/guide/recipes/{name}.yaml"));
    std::fs::read_to_string(path).unwrap()
}

/// A limiter with the rules of a recipe, on a manual clock.
struct RecipeLimiter {
    limiter: Limiter,
    clock: ManualClock,
    runtime: tokio::runtime::Runtime,
}

impl RecipeLimiter {
    fn load(name: &str) -> Self {
        let rules = RuleSet::parse(name, &recipe_text(name)).unwrap();
        let clock = ManualClock::default();
        let limiter = Limiter::builder().rules(rules).clock(clock.clock()).build();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        Self { limiter, clock, runtime }
    }

    fn check_cost(&self, cost: u64, attributes: &[(&str, &str)]) -> Decision {
        let mut request = Request::new().cost(cost);
        for (name, value) in attributes {
            request.insert(*name, *value).unwrap();
        }
        self.runtime.block_on(self.limiter.check(&request))
    }

    fn admits(&self, attributes: &[(&str, &str)]) -> bool {
        self.check_cost(1, attributes).is_allowed()
    }

    /// Returns how many of `requests` consecutive requests are admitted.
    fn count_admitted(&self, requests: usize, attributes: &[(&str, &str)]) -> usize {
        (0..requests).filter(|_| self.admits(attributes)).count()
    }
}

#[test]
fn page_shows_every_recipe_file_unchanged() {
    let files = std::fs::read_dir(repository_root().join("docs/guide/recipes")).unwrap();
    assert_eq!(files.count(), RECIPES.len());
    let mut rest = PAGE;
    for (heading, name) in RECIPES {
        let (_, part) = rest.split_once(&format!("\n## {heading}\n")).unwrap();
        let (_, block) = part.split_once("\n```yaml\n").unwrap();
        assert_eq!(block.split("```").next().unwrap(), recipe_text(name), "{heading}");
        let path = repository_root().join(format!("docs/guide/recipes/{name}.yaml"));
        let (code, _, notes) = run(&["validate", path.to_str().unwrap()]);
        assert_eq!(code, 0, "{notes}");
        rest = part;
    }
}

/// A port number of the guide would be replaced in the commands, so recipes must not use one.
#[test]
fn commands_on_the_page_print_the_shown_output() {
    for (heading, name) in RECIPES {
        let needs_redis = recipe_text(name).contains("on_store_failure: deny");
        if !needs_redis || !lacking(&[Tool::Server(Flavour::Redis)]) {
            assert_section_output(PAGE, heading);
        }
    }
}

#[test]
fn login_recipe_limits_attempts_and_blocks_after_100_denials() {
    let recipe = RecipeLimiter::load("login");
    let attempt = |ip: &str, user: &str| {
        recipe.check_cost(1, &[("path", "/login"), ("method", "POST"), ("ip", ip), ("user", user)])
    };
    // One account, many addresses.
    let attempts = (0..6).map(|index| attempt(&format!("192.0.2.{index}"), "ann").is_allowed());
    assert_eq!(attempts.filter(|allowed| *allowed).count(), 5);
    assert!(attempt("192.0.2.1", "bob").is_allowed());
    // Many accounts, one address.
    let attempts = (0..21).map(|index| attempt("198.51.100.7", &format!("u{index}")).is_allowed());
    assert_eq!(attempts.filter(|allowed| *allowed).count(), 20);
    assert!(attempt("198.51.100.8", "u1").is_allowed());
    // There was one denial so far. The hundredth denial blocks the address.
    for _ in 1..100 {
        assert!(attempt("198.51.100.7", "eve").block().is_none());
    }
    assert!(attempt("198.51.100.7", "eve").block().is_some());
    assert!(!recipe.admits(&[("path", "/anything"), ("ip", "198.51.100.7")]), "blocked everywhere");
    recipe.clock.advance(Span::HOUR);
    assert!(attempt("198.51.100.7", "u1").is_allowed());
}

#[test]
fn signup_recipe_admits_ten_per_address_in_any_hour() {
    let recipe = RecipeLimiter::load("signup");
    let signup_from = |ip: &'static str| [("path", "/signup"), ("method", "POST"), ("ip", ip)];
    // Half of the requests are sent before an hour boundary, half after it.
    recipe.clock.advance(Span::from_secs(3_000));
    assert_eq!(recipe.count_admitted(5, &signup_from("192.0.2.7")), 5);
    recipe.clock.advance(Span::from_secs(1_200));
    assert_eq!(
        recipe.count_admitted(6, &signup_from("192.0.2.7")),
        5,
        "the eleventh in the hour is denied"
    );
    assert!(recipe.admits(&signup_from("192.0.2.8")), "another address is admitted");
    let wait = recipe.check_cost(1, &signup_from("192.0.2.7")).retry_after().unwrap();
    assert_eq!(wait, Span::from_secs(2_400), "until the first is an hour old");
    recipe.clock.advance(wait);
    assert_eq!(recipe.count_admitted(9, &signup_from("192.0.2.7")), 5);
}

#[test]
fn payments_recipe_limits_each_user_and_fails_closed_only_for_payments() {
    let recipe = RecipeLimiter::load("payments");
    let pay = [("path", "/payments/cards"), ("method", "POST"), ("user", "ann")];
    assert_eq!(recipe.count_admitted(9, &pay), 5);
    let rules = recipe.limiter.rules();
    use tidegate::rules::OnStoreFailure::{Allow, Deny};
    assert_eq!(rules.rule("payments").unwrap().on_store_failure(), Deny);
    assert_eq!(rules.rule("products").unwrap().on_store_failure(), Allow);
}

#[test]
fn plans_recipe_applies_the_limit_of_each_plan_and_override() {
    let recipe = RecipeLimiter::load("plans");
    for (key, plan, wanted) in [
        ("k1", "free", 20),
        ("k2", "pro", 200),
        ("k3", "enterprise", 5_000),
        ("k4", "unheard-of", 20),
        ("launch-partner", "free", 2_000),
    ] {
        let client = [("path", "/v1/orders"), ("api_key", key), ("claim.plan", plan)];
        assert_eq!(recipe.count_admitted(wanted + 5, &client), wanted, "{plan}");
        recipe.clock.advance(Span::SECOND);
        let next_second = if plan == "enterprise" { 1_000 } else { wanted };
        assert_eq!(
            recipe.count_admitted(next_second + 5, &client),
            next_second,
            "{plan}, a second later"
        );
    }
}

#[test]
fn language_model_recipe_reserves_tokens_and_refunds_unused_ones() {
    let recipe = RecipeLimiter::load("language-models");
    let ann = [("path", "/v1/chat/1"), ("user", "ann"), ("team", "blue")];
    let bob = [("path", "/v1/chat/2"), ("user", "bob"), ("team", "blue")];
    let team_remaining = |decision: &Decision| {
        let team =
            decision.rule_outcomes().iter().find(|outcome| &*outcome.rule == "tokens-per-team");
        team.unwrap().outcome.remaining
    };
    assert!(recipe.check_cost(400_000, &ann).is_allowed());
    assert!(!recipe.check_cost(400_000, &ann).is_allowed());
    assert_eq!(
        team_remaining(&recipe.check_cost(0, &bob)),
        9_600_000,
        "a denial takes nothing from the team"
    );
    // The response used 50,000 tokens, so 350,000 are refunded.
    let request = Request::new().cost(350_000).with("user", "ann").unwrap();
    let request = request.with("team", "blue").unwrap().with("path", "/v1/chat/1").unwrap();
    let target =
        tidegate::CheckRequest { request: &request, target: tidegate::CheckTarget::AllMatching };
    recipe.runtime.block_on(recipe.limiter.refund_latest(target)).unwrap();
    assert_eq!(team_remaining(&recipe.check_cost(0, &bob)), 9_950_000);
    assert!(recipe.check_cost(450_000, &ann).is_allowed());
    assert!(!recipe.check_cost(1, &ann).is_allowed());
    let pro = [&ann[..], &[("claim.plan", "pro")]].concat();
    assert!(
        !recipe.check_cost(1, &pro).is_allowed(),
        "a change of plan keeps the spent part of the limit"
    );
    recipe.clock.advance(Span::DAY);
    assert!(recipe.check_cost(5_000_000, &pro).is_allowed());
}

#[test]
fn webhook_recipe_returns_the_delay_of_each_queued_call() {
    let recipe = RecipeLimiter::load("webhooks");
    let webhook_to = |host: &'static str| [("host", host)];
    for position in 0..51 {
        let decision = recipe.check_cost(1, &webhook_to("hooks.example.com"));
        assert!(decision.is_allowed());
        assert_eq!(decision.delay(), Span::from_millis(200 * position));
    }
    let denied = recipe.check_cost(1, &webhook_to("hooks.example.com"));
    assert_eq!(denied.retry_after(), Some(Span::from_millis(200)));
    assert_eq!(recipe.check_cost(1, &webhook_to("other.example.com")).delay(), Span::ZERO);
}

#[test]
fn scraping_recipe_blocks_scrapers_but_not_readers() {
    let recipe = RecipeLimiter::load("scraping");
    let get =
        |path: &'static str, ip: &'static str| [("method", "GET"), ("path", path), ("ip", ip)];
    assert_eq!(recipe.count_admitted(12, &get("/search", "192.0.2.7")), 10);
    assert!(recipe.admits(&get("/products/1", "192.0.2.7")), "reading goes on");
    let scraper = get("/products/1", "198.51.100.7");
    assert_eq!(recipe.count_admitted(120 + 359, &scraper), 120);
    assert!(recipe.check_cost(1, &scraper).block().is_none(), "the last denial that only counts");
    assert!(recipe.check_cost(1, &scraper).block().is_some());
    recipe.clock.advance(Span::from_secs(6 * 3_600));
    assert!(recipe.admits(&scraper));
    assert_eq!(
        recipe.count_admitted(1_000, &get("/products/1", "10.1.2.3")),
        1_000,
        "our own crawler"
    );
}

#[test]
fn guide_pages_link_to_the_recipes() {
    for page in ["README.md", "rules.md"] {
        let text =
            std::fs::read_to_string(repository_root().join("docs/guide").join(page)).unwrap();
        assert!(text.contains("](recipes.md"), "{page}");
    }
    assert!(Path::new(&repository_root().join("docs/reference/rules.md")).exists());
}

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{EncodingKey, Header, encode};
use serde_json::json;
use tempfile::TempDir;
use tidegate_limiter::ManualClock;
use tidegate_redis::Secret;
use tidegate_testkit::{Tool, lacking};

use super::*;

const SECRET: &str = "a secret that has thirty-two bytes";

/// Returns a verifier on a manual clock.
fn verifier(config: JwtConfig) -> (TokenVerifier, ManualClock) {
    let time = ManualClock::default();
    (TokenVerifier::new(config, time.clock()).unwrap(), time)
}

fn config(keys: KeySource) -> JwtConfig {
    JwtConfig {
        keys,
        algorithms: Vec::new(),
        issuers: Vec::new(),
        audiences: Vec::new(),
        leeway: Span::from_secs(30),
        place: TokenPlace::Bearer,
    }
}

fn secret_config() -> JwtConfig {
    config(KeySource::Secret(Secret::from(SECRET.to_owned())))
}

fn now(time: &ManualClock) -> u64 {
    time.now().as_secs_ceil()
}

/// Returns a token with these claims, signed with the secret.
fn token(claims: &Value) -> String {
    signed(Algorithm::HS256, None, &EncodingKey::from_secret(SECRET.as_bytes()), claims)
}

fn signed(algorithm: Algorithm, kid: Option<&str>, key: &EncodingKey, claims: &Value) -> String {
    let header = Header { kid: kid.map(str::to_owned), ..Header::new(algorithm) };
    encode(&header, claims, key).unwrap()
}

fn head(name: &str, value: &str) -> Parts {
    hyper::Request::get("/").header(name, value).body(()).unwrap().into_parts().0
}

/// Returns the verified `sub` of a bearer token.
fn user(verifier: &TokenVerifier, token: &str) -> Option<String> {
    let head = head("authorization", &format!("Bearer {token}"));
    verifier.claims(&head).unwrap()?.text("sub").map(Cow::into_owned)
}

#[test]
fn scalar_claims_become_text() {
    let (verifier, time) = verifier(secret_config());
    let claims = json!({
        "exp": now(&time) + 60, "sub": "alice", "plan": "pro", "level": 3, "beta": true,
        "roles": ["a"], "more": {"a": 1}, "none": null
    });
    let head = head("authorization", &format!("bearer {}", token(&claims)));
    let claims = verifier.claims(&head).unwrap().unwrap();
    let text = |name| claims.text(name).map(Cow::into_owned);
    assert_eq!(text("sub").as_deref(), Some("alice"));
    assert_eq!(text("plan").as_deref(), Some("pro"));
    assert_eq!(text("level").as_deref(), Some("3"));
    assert_eq!(text("beta").as_deref(), Some("true"));
    for name in ["roles", "more", "none", "missing"] {
        assert_eq!(text(name), None, "{name}");
    }
}

#[test]
fn token_is_valid_from_nbf_until_exp_with_leeway() {
    let (verifier, time) = verifier(secret_config());
    let start = now(&time);
    let token = token(&json!({"sub": "alice", "nbf": start + 40, "exp": start + 100}));
    assert_eq!(user(&verifier, &token), None);
    time.advance(Span::from_secs(10));
    assert_eq!(user(&verifier, &token).as_deref(), Some("alice"));
    time.advance(Span::from_secs(119));
    assert_eq!(user(&verifier, &token).as_deref(), Some("alice"));
    time.advance(Span::from_secs(1));
    assert_eq!(user(&verifier, &token), None);
}

#[test]
fn token_without_a_valid_exp_is_rejected() {
    let (verifier, time) = verifier(secret_config());
    for exp in [json!(null), json!("soon"), json!(-5), json!(u64::MAX), json!(1e300), json!([])] {
        let claims = json!({"sub": "alice", "exp": exp});
        assert_eq!(user(&verifier, &token(&claims)), None, "{exp}");
    }
    assert_eq!(user(&verifier, &token(&json!({"sub": "alice"}))), None);
    let fraction = json!({"sub": "alice", "exp": now(&time) as f64 + 0.5});
    assert_eq!(user(&verifier, &token(&fraction)).as_deref(), Some("alice"));
}

#[test]
fn token_with_an_invalid_signature_is_rejected() {
    let (verifier, time) = verifier(secret_config());
    let exp = now(&time) + 60;
    let good = token(&json!({"sub": "alice", "exp": exp}));
    let evil = token(&json!({"sub": "mallory", "exp": exp}));
    let parts: Vec<&str> = good.split('.').collect();
    let payload = evil.split('.').nth(1).unwrap();
    let swapped = format!("{}.{payload}.{}", parts[0], parts[2]);
    let none = format!("eyJhbGciOiJub25lIn0.{}.", parts[1]);
    let cut = format!("{}.{}.", parts[0], parts[1]);
    for token in [swapped.as_str(), &none, &cut, "", ".", "..", "a.b.c", "Bearer", &good[1..]] {
        assert_eq!(user(&verifier, token), None, "{token}");
    }
    let other = EncodingKey::from_secret(b"another secret that is long enough");
    let foreign = signed(Algorithm::HS256, None, &other, &json!({"sub": "eve", "exp": exp}));
    assert_eq!(user(&verifier, &foreign), None);
    assert_eq!(user(&verifier, &good).as_deref(), Some("alice"));
}

#[test]
fn token_with_critical_extensions_is_rejected() {
    let (verifier, time) = verifier(secret_config());
    let header = Header { crit: Some(vec!["b64".to_owned()]), ..Header::new(Algorithm::HS256) };
    let claims = json!({"sub": "alice", "exp": now(&time) + 60});
    let key = EncodingKey::from_secret(SECRET.as_bytes());
    assert_eq!(user(&verifier, &encode(&header, &claims, &key).unwrap()), None);
}

#[test]
fn only_configured_algorithms_are_accepted() {
    let (verifier, time) =
        verifier(JwtConfig { algorithms: vec![Algorithm::HS512], ..secret_config() });
    let key = EncodingKey::from_secret(SECRET.as_bytes());
    let claims = json!({"sub": "alice", "exp": now(&time) + 60});
    let user = |algorithm| user(&verifier, &signed(algorithm, None, &key, &claims));
    assert_eq!(user(Algorithm::HS256), None);
    assert_eq!(user(Algorithm::HS512).as_deref(), Some("alice"));
}

#[test]
fn issuer_and_audience_must_be_present_and_match() {
    let (verifier, time) = verifier(JwtConfig {
        issuers: vec!["https://id.example".to_owned()],
        audiences: vec!["shop".to_owned(), "api".to_owned()],
        ..secret_config()
    });
    let exp = now(&time) + 60;
    let user = |iss: Value, aud: Value| {
        let mut claims = json!({"sub": "alice", "exp": exp, "iss": iss, "aud": aud});
        claims.as_object_mut().unwrap().retain(|_, value| !value.is_null());
        user(&verifier, &token(&claims))
    };
    let right = json!("https://id.example");
    assert!(user(right.clone(), json!("api")).is_some());
    assert!(user(right.clone(), json!(["other", "shop"])).is_some());
    assert!(user(right.clone(), json!("other")).is_none());
    assert!(user(right, json!(null)).is_none());
    assert!(user(json!("https://evil.example"), json!("api")).is_none());
    assert!(user(json!(null), json!("api")).is_none());
}

#[test]
fn any_audience_is_accepted_if_none_is_configured() {
    let (verifier, time) = verifier(secret_config());
    let claims = json!({"sub": "alice", "exp": now(&time) + 60, "aud": "shop", "iss": "x"});
    assert!(user(&verifier, &token(&claims)).is_some());
}

#[test]
fn token_is_read_from_a_cookie_or_another_header() {
    let time = ManualClock::default();
    let token = token(&json!({"sub": "alice", "exp": now(&time) + 60}));
    let cookie = format!("a=1; id_token={token}");
    let bearer = format!("Bearer {token}");
    let cases = [
        ("cookie.id_token", "cookie", cookie.as_str()),
        ("header.x-token", "x-token", &token),
        ("header.x-token", "x-token", &bearer),
    ];
    for (place, header, value) in cases {
        let place = TokenPlace::Field(Lookup::named(place).unwrap());
        let (verifier, _) = verifier(JwtConfig { place, ..secret_config() });
        assert!(verifier.claims(&head(header, value)).unwrap().is_some(), "{header}");
        assert!(verifier.claims(&head("authorization", &bearer)).unwrap().is_none());
    }
}

/// Creates a key pair. Returns the PEM of the private key and the path of the public key.
fn key_pair(folder: &Path, name: &str, options: &[&str]) -> (Vec<u8>, PathBuf) {
    let private = folder.join(format!("{name}.pem"));
    let public = folder.join(format!("{name}.pub"));
    let openssl = |arguments: &[&str]| {
        let run = Command::new("openssl").args(arguments).output().unwrap();
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    };
    let private = private.to_str().unwrap();
    openssl(&[&["genpkey", "-out", private], options].concat());
    openssl(&["pkey", "-in", private, "-pubout", "-out", public.to_str().unwrap()]);
    (fs::read(private).unwrap(), public)
}

const RSA: [&str; 4] = ["-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"];
const EC: [&str; 4] = ["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"];
const ED: [&str; 2] = ["-algorithm", "ED25519"];

#[test]
fn public_key_verifies_its_own_family_and_is_never_an_hmac_secret() {
    if lacking(&[Tool::Openssl]) {
        return;
    }
    let folder = TempDir::new().unwrap();
    let (rsa, rsa_public) = key_pair(folder.path(), "rsa", &RSA);
    let (ec, ec_public) = key_pair(folder.path(), "ec", &EC);
    let (ed, ed_public) = key_pair(folder.path(), "ed", &ED);
    let cases = [
        (Algorithm::RS256, EncodingKey::from_rsa_pem(&rsa).unwrap(), &rsa_public),
        (Algorithm::PS384, EncodingKey::from_rsa_pem(&rsa).unwrap(), &rsa_public),
        (Algorithm::ES256, EncodingKey::from_ec_pem(&ec).unwrap(), &ec_public),
        (Algorithm::EdDSA, EncodingKey::from_ed_pem(&ed).unwrap(), &ed_public),
    ];
    for (algorithm, key, public) in cases {
        let (verifier, time) = verifier(config(KeySource::PublicKey(public.clone())));
        let claims = json!({"sub": "alice", "exp": now(&time) + 60});
        let good = signed(algorithm, None, &key, &claims);
        assert_eq!(user(&verifier, &good).as_deref(), Some("alice"), "{algorithm:?}");
        // An attacker could use the public key as an HMAC secret.
        let confused = EncodingKey::from_secret(&fs::read(public).unwrap());
        let confused = signed(Algorithm::HS256, None, &confused, &claims);
        assert_eq!(user(&verifier, &confused), None, "{algorithm:?}");
    }
}

/// Returns a JWK set of these keys, with their ids.
fn key_set(keys: &[(&str, &EncodingKey, Algorithm)]) -> String {
    let mut set: Vec<Value> = vec![json!({"kty": "unheard-of", "kid": "strange"})];
    for (id, key, algorithm) in keys {
        let mut jwk = Jwk::from_encoding_key(key, *algorithm).unwrap();
        jwk.common.key_id = Some((*id).to_owned());
        set.push(serde_json::to_value(jwk).unwrap());
    }
    json!({"keys": set}).to_string()
}

#[test]
fn jwk_set_is_searched_by_key_id_and_read_again_after_a_change() {
    if lacking(&[Tool::Openssl]) {
        return;
    }
    let folder = TempDir::new().unwrap();
    let rsa = EncodingKey::from_rsa_pem(&key_pair(folder.path(), "rsa", &RSA).0).unwrap();
    let ec = EncodingKey::from_ec_pem(&key_pair(folder.path(), "ec", &EC).0).unwrap();
    let path = folder.path().join("jwks.json");
    let old = [("old", &rsa, Algorithm::RS256)];
    fs::write(&path, key_set(&old)).unwrap();
    let (verifier, time) = verifier(config(KeySource::Jwks(path.clone())));
    let claims = json!({"sub": "alice", "exp": now(&time) + 600});
    let is_accepted = |algorithm, kid: Option<&str>, key: &EncodingKey| {
        user(&verifier, &signed(algorithm, kid, key, &claims)).is_some()
    };
    assert!(is_accepted(Algorithm::RS256, Some("old"), &rsa));
    assert!(is_accepted(Algorithm::RS256, None, &rsa), "the only key needs no name");
    assert!(!is_accepted(Algorithm::RS512, Some("old"), &rsa), "the set says RS256");
    assert!(!is_accepted(Algorithm::ES256, Some("new"), &ec));
    fs::write(&path, key_set(&[old[0], ("new", &ec, Algorithm::ES256)])).unwrap();
    time.advance(Span::MINUTE);
    assert!(!is_accepted(Algorithm::ES256, Some("new"), &ec), "a request never reads the file");
    verifier.reload_keys(WakeReason::Change);
    assert!(is_accepted(Algorithm::ES256, Some("new"), &ec));
    assert!(!is_accepted(Algorithm::ES256, None, &ec), "one of several needs a name");
    assert!(!is_accepted(Algorithm::ES256, Some("old"), &ec));
    fs::write(&path, "nonsense").unwrap();
    verifier.reload_keys(WakeReason::Change);
    assert!(is_accepted(Algorithm::RS256, Some("old"), &rsa), "what can't be read changes nothing");
    fs::write(&path, key_set(&[("new", &ec, Algorithm::ES256)])).unwrap();
    verifier.reload_keys(WakeReason::Change);
    assert!(
        !is_accepted(Algorithm::RS256, Some("old"), &rsa),
        "a key that was taken out counts no more"
    );
    assert!(is_accepted(Algorithm::ES256, Some("new"), &ec));
}

#[test]
fn reload_reads_keys_whose_file_stamp_is_unchanged() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("secret");
    fs::write(&path, SECRET).unwrap();
    let before = fs::metadata(&path).unwrap().modified().unwrap();
    let (verifier, time) = verifier(config(KeySource::SecretFile(path.clone())));
    let claims = json!({"sub": "alice", "exp": now(&time) + 600});
    let other = SECRET.chars().rev().collect::<String>();
    let is_valid_with = |secret: &str| {
        let key = EncodingKey::from_secret(secret.as_bytes());
        user(&verifier, &signed(Algorithm::HS256, None, &key, &claims)).is_some()
    };
    assert!(is_valid_with(SECRET) && !is_valid_with(&other));
    // A restored backup may have the same length and modification time.
    fs::write(&path, &other).unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_modified(before).unwrap();
    verifier.reload_keys(WakeReason::Change);
    assert!(is_valid_with(SECRET) && !is_valid_with(&other));
    verifier.reload_keys(WakeReason::Reload);
    assert!(!is_valid_with(SECRET) && is_valid_with(&other));
    fs::write(&path, "short").unwrap();
    verifier.reload_keys(WakeReason::Reload);
    assert!(is_valid_with(&other), "keys that can't be used leave the old ones active");
}

#[test]
fn invalid_keys_are_rejected_with_a_reason() {
    let folder = TempDir::new().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path
    };
    let rejected =
        |keys| TokenVerifier::new(config(keys), ManualClock::default().clock()).unwrap_err();
    let cases = [
        (
            KeySource::SecretFile(file("a", "short\n")),
            "a secret of 32 bytes or more is wanted, found 5",
        ),
        (
            KeySource::PublicKey(file("b", SECRET)),
            "a PEM public key (RSA, EC or Ed25519) is wanted",
        ),
        (KeySource::Jwks(file("c", r#"{"keys":[]}"#)), "no key that can verify anything found"),
        (KeySource::Jwks(file("d", "[]")), "a JWK set is wanted"),
    ];
    for (keys, reason) in cases {
        let error = rejected(keys).to_string();
        assert!(error.contains(reason), "{error}");
        assert!(!error.contains(SECRET), "{error}");
    }
}

//! The older text format, for whoever does not ask for OpenMetrics.
//!
//! The two differ in what a counter's family is called: OpenMetrics leaves the suffix `_total` to the
//! samples, the older format has it in the description too. It knows neither units nor an end.

/// The content type of the older format.
pub(super) const TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Rewrites an exposition in OpenMetrics.
pub(super) fn of(exposition: &str) -> String {
    let mut text = String::with_capacity(exposition.len() + 1024);
    // A description comes before the type, which tells what its family is called.
    let mut help: Option<(&str, &str)> = None;
    for line in exposition.lines() {
        if let Some((name, words)) = described(line, "# HELP ") {
            help = Some((name, words));
        } else if let Some((name, kind)) = described(line, "# TYPE ") {
            let (suffix, kind) = match kind {
                "counter" => ("_total", "counter"),
                "info" => ("_info", "gauge"),
                "unknown" => ("", "untyped"),
                other => ("", other),
            };
            if let Some((_, words)) = help.take() {
                text.extend(["# HELP ", name, suffix, " ", words, "\n"]);
            }
            text.extend(["# TYPE ", name, suffix, " ", kind, "\n"]);
        } else if !line.starts_with('#') {
            text.extend([line, "\n"]);
        }
    }
    text
}

fn described<'l>(line: &'l str, kind: &str) -> Option<(&'l str, &'l str)> {
    line.strip_prefix(kind)?.split_once(' ')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_called_as_the_older_format_wants_them() {
        let modern = "\
# HELP a_checks Checks.
# TYPE a_checks counter
a_checks_total{door=\"http\"} 3
# HELP a_build What this is.
# TYPE a_build info
a_build_info{version=\"1\"} 1
# HELP a_wait_seconds Waits.
# TYPE a_wait_seconds histogram
# UNIT a_wait_seconds seconds
a_wait_seconds_sum 0.5
a_wait_seconds_count 1
a_wait_seconds_bucket{le=\"+Inf\"} 1
# HELP a_ready Ready.
# TYPE a_ready gauge
a_ready 1
# EOF
";
        let classic = "\
# HELP a_checks_total Checks.
# TYPE a_checks_total counter
a_checks_total{door=\"http\"} 3
# HELP a_build_info What this is.
# TYPE a_build_info gauge
a_build_info{version=\"1\"} 1
# HELP a_wait_seconds Waits.
# TYPE a_wait_seconds histogram
a_wait_seconds_sum 0.5
a_wait_seconds_count 1
a_wait_seconds_bucket{le=\"+Inf\"} 1
# HELP a_ready Ready.
# TYPE a_ready gauge
a_ready 1
";
        assert_eq!(of(modern), classic);
    }
}

//! Rules in the output of `nft -a list ruleset` that may drop the packets of a subflow.

use std::net::SocketAddr;

/// A rule that drops or rejects packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    /// Family, table and chain, as `nft` takes them.
    pub(crate) chain: String,
    /// The rule's text.
    pub(crate) text: String,
    handle: String,
}

impl Rule {
    /// The command that deletes it.
    pub(crate) fn delete(&self) -> String {
        format!("nft delete rule {} handle {}", self.chain, self.handle)
    }
}

/// The rules that drop packets and name MPTCP, the interface, or the target. Which one applies, only the kernel knows.
pub(crate) fn suspects(ruleset: &str, interface: &str, target: SocketAddr) -> Vec<Rule> {
    let words = [interface.to_owned(), target.ip().to_string(), target.port().to_string()];
    let concerns = |text: &str| {
        let mut found = text.split(|c: char| c.is_whitespace() || "\"{},".contains(c));
        text.contains("mptcp")
            || text.contains("tcp option 30")
            || found.any(|word| words.iter().any(|w| w == word))
    };
    let drops = |text: &str| text.split_whitespace().any(|word| word == "drop" || word == "reject");
    rules(ruleset).into_iter().filter(|rule| drops(&rule.text) && concerns(&rule.text)).collect()
}

fn rules(ruleset: &str) -> Vec<Rule> {
    let (mut table, mut chain) = (String::new(), String::new());
    let mut rules = Vec::new();
    for line in ruleset.lines().map(str::trim) {
        let (text, handle) = line.rsplit_once("# handle ").unwrap_or((line, ""));
        let text = text.trim();
        match text.split_whitespace().collect::<Vec<_>>()[..] {
            ["table", family, name, "{"] => table = format!("{family} {name}"),
            ["chain", name, "{"] => chain = format!("{table} {name}"),
            _ if !handle.is_empty() => {
                rules.push(Rule { chain: chain.clone(), text: text.to_owned(), handle: handle.to_owned() });
            }
            _ => {}
        }
    }
    rules
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RULESET: &str = "table inet test { # handle 1
\tchain output { # handle 2
\t\ttype filter hook output priority 0; policy accept;
\t\ttcp option mptcp subtype 1 drop # handle 3
\t\toifname \"wlan\" counter packets 0 bytes 0 drop # handle 4
\t\toifname \"wlan0\" drop # handle 5
\t\ttcp dport { 443, 8443 } reject with tcp reset # handle 6
\t\ttcp dport 443 accept # handle 7
\t}
}
";

    #[test]
    fn finds_rules_that_drop_subflows_and_their_commands() {
        let found = suspects(RULESET, "wlan", "192.0.2.1:443".parse().unwrap());
        let commands: Vec<_> = found.iter().map(Rule::delete).collect();
        let expected = [3, 4, 6].map(|handle| format!("nft delete rule inet test output handle {handle}"));
        assert_eq!(commands, expected);
        assert_eq!(found[0].text, "tcp option mptcp subtype 1 drop");
    }

    proptest! {
        #[test]
        fn arbitrary_text_does_not_panic(text: String) {
            let _ = suspects(&text, "wlan", "192.0.2.1:443".parse().unwrap());
        }
    }
}

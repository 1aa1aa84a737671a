//! Errors on stderr: one line with all causes, each said once.

/// The error and its causes, separated by colons. A cause that its error already quotes is left out.
pub(crate) fn message(error: &anyhow::Error) -> String {
    let mut message = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !message.contains(&cause) {
            message = format!("{message}: {cause}");
        }
    }
    message
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn prints_each_cause_once() {
        let error = anyhow::Error::new(io::Error::other("no route to host"));
        assert_eq!(message(&error.context("cannot connect")), "cannot connect: no route to host");
        let quoted = anyhow::Error::new(io::Error::other("no route to host"))
            .context("cannot connect: no route to host");
        assert_eq!(message(&quoted.context("run")), "run: cannot connect: no route to host");
    }
}

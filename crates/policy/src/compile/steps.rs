//! From formulas to steps, with tests skipped where their result is known.

use super::CompileError;
use super::formula::{Formula, Question};
use super::test::Test;

/// A step of the program. It continues at a later step; the number of steps is the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Evaluates a test and continues at one of two steps.
    Ask { test: Test, yes: usize, no: usize },
    /// Records that a chain matches.
    Append { slot: u16, next: usize },
}

/// The verifier follows at most 8,192 jumps in a row.
const MAX_TESTS: usize = 8_000;

/// How many results are tracked per path: more than the tests of a chain that another may repeat.
const MAX_FACTS: usize = 16;

/// Compiles formulas, in this order. Every step is reachable.
pub(super) fn of<'f>(
    chains: impl IntoIterator<Item = (&'f Formula, u16)>,
) -> Result<Vec<Step>, CompileError> {
    let mut builder = Builder::default();
    for (formula, slot) in chains {
        builder.chain(formula, slot)?;
    }
    let mut steps = builder.finish();
    let reached = shorten(&mut steps);
    Ok(without(steps, &reached))
}

/// A jump target, by index in `places`.
#[derive(Clone, Copy)]
struct Label(usize);

#[derive(Default)]
struct Builder {
    /// Targets are numbers of labels.
    steps: Vec<Step>,
    places: Vec<usize>,
}

impl Builder {
    fn chain(&mut self, formula: &Formula, slot: u16) -> Result<(), CompileError> {
        let (matched, done) = (self.label(), self.label());
        match formula {
            Formula::Constant(false) => return Ok(()),
            Formula::Constant(true) => {}
            Formula::Varying(question) => self.ask(question, matched, done)?,
        }
        self.here(matched);
        self.steps.push(Step::Append { slot, next: done.0 });
        self.here(done);
        Ok(())
    }

    /// Continues at one of two labels, by the result.
    fn ask(&mut self, question: &Question, yes: Label, no: Label) -> Result<(), CompileError> {
        match question {
            Question::Test(_) if self.steps.len() >= MAX_TESTS => {
                return Err(CompileError::TooManyTests { max: MAX_TESTS });
            }
            Question::Test(test) => self.steps.push(Step::Ask { test: *test, yes: yes.0, no: no.0 }),
            Question::Not(inner) => self.ask(inner, no, yes)?,
            Question::All(parts) => {
                self.each(parts, |builder, part, next| builder.ask(part, next, no), yes)?
            }
            Question::Any(parts) => {
                self.each(parts, |builder, part, next| builder.ask(part, yes, next), no)?
            }
        }
        Ok(())
    }

    /// Evaluates the parts in order; after the last comes `end`.
    fn each(
        &mut self,
        parts: &[Question],
        ask: impl Fn(&mut Self, &Question, Label) -> Result<(), CompileError>,
        end: Label,
    ) -> Result<(), CompileError> {
        let Some((last, others)) = parts.split_last() else { return Ok(()) };
        for part in others {
            let next = self.label();
            ask(self, part, next)?;
            self.here(next);
        }
        ask(self, last, end)
    }

    fn label(&mut self) -> Label {
        self.places.push(0);
        Label(self.places.len() - 1)
    }

    fn here(&mut self, label: Label) {
        self.places[label.0] = self.steps.len();
    }

    fn finish(self) -> Vec<Step> {
        let at = |label: usize| self.places[label];
        let place = |step| match step {
            Step::Ask { test, yes, no } => Step::Ask { test, yes: at(yes), no: at(no) },
            Step::Append { slot, next } => Step::Append { slot, next: at(next) },
        };
        self.steps.iter().copied().map(place).collect()
    }
}

/// Known results, the latest last.
type Facts = Vec<(Test, bool)>;

/// Skips tests whose results are known on a path; returns which steps are reachable. Steps only lead forward, so all
/// paths to a step are known when it is visited.
fn shorten(steps: &mut [Step]) -> Vec<bool> {
    let mut known: Vec<Option<Facts>> = vec![None; steps.len() + 1];
    known[0] = Some(Facts::new());
    for index in 0..steps.len() {
        let Some(facts) = known[index].take() else { continue };
        let mut way = |steps: &[Step], to: usize, facts: Facts| {
            let to = past_known(steps, to, &facts);
            match &mut known[to] {
                Some(others) => others.retain(|fact| facts.contains(fact)),
                unknown => *unknown = Some(facts),
            }
            to
        };
        match steps[index] {
            Step::Ask { test, yes, no } => {
                let yes = way(steps, yes, with(&facts, test, true));
                let no = way(steps, no, with(&facts, test, false));
                steps[index] = Step::Ask { test, yes, no };
            }
            Step::Append { slot, next } => {
                let next = way(steps, next, facts.clone());
                steps[index] = Step::Append { slot, next };
            }
        }
        known[index] = Some(facts);
    }
    known.into_iter().map(|facts| facts.is_some()).collect()
}

fn with(facts: &Facts, test: Test, answer: bool) -> Facts {
    let forgotten = (facts.len() + 1).saturating_sub(MAX_FACTS);
    facts[forgotten..].iter().copied().chain([(test, answer)]).collect()
}

/// The step at which a path continues, given known results.
fn past_known(steps: &[Step], mut to: usize, facts: &Facts) -> usize {
    while let Some(Step::Ask { test, yes, no }) = steps.get(to)
        && let Some(answer) = facts.iter().find_map(|(other, answer)| test.implied_by(other, *answer))
    {
        to = if answer { *yes } else { *no };
    }
    to
}

/// Removes unreachable steps.
fn without(steps: Vec<Step>, reached: &[bool]) -> Vec<Step> {
    let mut places = Vec::with_capacity(steps.len() + 1);
    let mut kept = 0;
    for reached in reached.iter().take(steps.len()) {
        places.push(kept);
        kept += usize::from(*reached);
    }
    places.push(kept);
    let place = |step| match step {
        Step::Ask { test, yes, no } => Step::Ask { test, yes: places[yes], no: places[no] },
        Step::Append { slot, next } => Step::Append { slot, next: places[next] },
    };
    steps.into_iter().zip(reached).filter(|(_, reached)| **reached).map(|(step, _)| place(step)).collect()
}

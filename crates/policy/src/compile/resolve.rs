//! Fills into a chain what the host knows.

use super::formula::Formula;
use super::selectors::Translation;
use super::{CompileError, Host, Resolved, actors};
use crate::specification::{Chain, Interface};

/// A chain for this host. What is not there on the host is no error: it is listed, and does not match.
///
/// # Errors
/// It asks for the user's own without its number, or for what its hook does not have.
pub(crate) fn resolve(chain: &Chain, host: &Host) -> Result<Resolved, CompileError> {
    let mut translation =
        Translation { host, hook: chain.hook, needs: 0, own_selectors: 0, absent: Vec::new() };
    let on = Formula::any(
        chain.interfaces.iter().map(|interface| translation.interface(interface)).collect::<Vec<_>>(),
    );
    let select = translation.selector(&chain.select, 0)?;
    let actors =
        chain.actors.iter().map(|actor| actors::actor(actor, &mut translation)).collect::<Result<_, _>>()?;
    Ok(Resolved {
        hook: chain.hook,
        priority: chain.priority,
        interfaces: interfaces(chain, host),
        actors,
        slot: 0,
        formula: Formula::all([on, select]),
        needs: translation.needs,
        own_selectors: translation.own_selectors,
        absent: translation.absent,
    })
}

/// Those on which the chain can match, by index.
fn interfaces(chain: &Chain, host: &Host) -> Vec<u32> {
    let meant = |name: &str, loopback: bool| {
        chain.interfaces.iter().any(|interface| match interface {
            Interface::Named(named) => named == name,
            Interface::Role(role) => host.roles.get(name) == Some(role),
            Interface::All => !loopback,
        })
    };
    let there = host.interfaces.iter().filter(|interface| meant(&interface.name, interface.loopback));
    there.map(|interface| interface.index).collect()
}

//! Resolves a chain against the host.

use super::formula::Formula;
use super::selectors::Translation;
use super::{CompileError, Host, Resolved, actors};
use crate::model::{Chain, Interface};

/// Resolves a chain. Missing interfaces and control groups are not an error: they are listed, and do not match.
///
/// # Errors
/// It refers to an unknown custom program, or uses something that its hook does not support.
pub(crate) fn resolve(chain: &Chain, host: &Host) -> Result<Resolved, CompileError> {
    let mut translation =
        Translation { host, hook: chain.hook, needs: 0, custom_selectors: 0, absent: Vec::new() };
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
        custom_selectors: translation.custom_selectors,
        absent: translation.absent,
    })
}

/// The indexes of the interfaces on which the chain can match.
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

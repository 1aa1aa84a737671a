"""What an attacker can derive, by saturation of Horn clauses: the method of ProVerif (Blanchet, CSFW 2001).

A term is a variable (a number) or a tuple of a name and terms; a clause is (hypotheses, conclusion),
both of facts, which look like terms. The fact ("att", t) says that the attacker has t. The fact
("begin", t), that an event happened, is never derived but kept among a clause's hypotheses. A name that
begins with # is a tuple of messages: who has it has its parts, and the reverse.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush

Term = int | tuple
Clause = tuple[tuple[Term, ...], Term]


def saturate(clauses: Iterable[Clause], enough: str | None = None, most: int = 200_000) -> list[Clause]:
    """All that follows, in clauses whose hypotheses the attacker can choose or that are events.

    Complete: a fact follows from `clauses` only if a clause of the outcome gives it. It ends earlier, with
    that one alone, when something follows whose predicate is `enough`. Raises RuntimeError after `most`
    steps, for it need not end.
    """
    kept: dict[tuple, list[Clause]] = defaultdict(list)
    solved: dict[tuple, list[Clause]] = defaultdict(list)
    waiting: dict[tuple, list[tuple[Clause, int]]] = defaultdict(list)
    new: list[tuple[int, int, Clause]] = []

    def add(clauses: Iterable[Clause]):
        # The smallest first: they make others superfluous, and what goes wrong goes wrong simply.
        for clause in clauses:
            heappush(new, (size(clause), next(count), clause))

    count = itertools.count()
    add(tidied for clause in clauses for tidied in tidy(clause))
    steps = 0
    while new:
        clause = heappop(new)[2]
        key = shape(clause[1])
        if any(subsumes(other, clause) for other in kept[key]):
            continue
        steps += 1
        if steps > most:
            raise RuntimeError(f"not saturated after {most} clauses")
        kept[key].append(clause)
        place = selected(clause)
        if place is None:
            if clause[1][0] == enough:
                return [clause]
            solved[key].append(clause)
            for other, at in waiting[key]:
                add(resolve(clause, other, at))
        else:
            wanted = shape(clause[0][place])
            waiting[wanted].append((clause, place))
            for other in solved[wanted]:
                add(resolve(other, clause, place))
    return [clause for found in solved.values() for clause in found]


def size(clause: Clause) -> int:
    return sum(1 for fact in (*clause[0], clause[1]) for _ in subterms(fact))


def subterms(term: Term) -> Iterator[Term]:
    yield term
    if not isinstance(term, int):
        for part in term[1:]:
            yield from subterms(part)


def shape(fact: Term) -> tuple:
    """What two facts must share to be unified: predicate and outermost name."""
    inner = fact[1] if len(fact) > 1 else None
    return (fact[0], inner[0] if isinstance(inner, tuple) else None)


def selected(clause: Clause) -> int | None:
    """The hypothesis to resolve upon: none that the attacker can fulfil with anything, no event."""
    best = None
    for place, fact in enumerate(clause[0]):
        if fact[0] == "begin" or (fact[0] == "att" and isinstance(fact[1], int)):
            continue
        if fact[0] != "att":
            return place
        best = place if best is None else best
    return best


def resolve(giver: Clause, taker: Clause, place: int) -> Iterator[Clause]:
    """The taker with its hypothesis fulfilled by the giver's conclusion."""
    offset = 1 + max(variables(giver), default=-1)
    hypotheses, conclusion = shifted(taker[0], offset), shift(taker[1], offset)
    binding: dict[int, Term] = {}
    if unify(giver[1], hypotheses[place], binding):
        both = (*giver[0], *hypotheses[:place], *hypotheses[place + 1 :])
        yield from tidy((tuple(apply(fact, binding) for fact in both), apply(conclusion, binding)))


def tidy(clause: Clause) -> Iterator[Clause]:
    """The same, in parts and without what says nothing; none for a tautology."""
    conclusion = clause[1]
    if conclusion[0] == "att" and isinstance(conclusion[1], tuple) and conclusion[1][0].startswith("#"):
        for part in conclusion[1][1:]:
            yield from tidy((clause[0], ("att", part)))
        return
    hypotheses: list[Term] = []
    todo = list(reversed(clause[0]))
    while todo:
        fact = todo.pop()
        if fact[0] == "att" and isinstance(fact[1], tuple) and fact[1][0].startswith("#"):
            todo.extend(("att", part) for part in reversed(fact[1][1:]))
        elif fact not in hypotheses:
            hypotheses.append(fact)
    if conclusion in hypotheses:
        return
    # What the attacker must have, whatever it is, and that appears nowhere else: he has something.
    free = [fact[1] for fact in hypotheses if fact[0] == "att" and isinstance(fact[1], int)]
    used: set[int] = set(occurring(conclusion))
    for fact in hypotheses:
        if not (fact[0] == "att" and isinstance(fact[1], int)):
            used.update(occurring(fact))
    idle = {variable for variable in free if variable not in used}
    hypotheses = [fact for fact in hypotheses if not (fact[0] == "att" and fact[1] in idle)]
    names: dict[int, int] = {}
    yield (tuple(numbered(fact, names) for fact in hypotheses), numbered(conclusion, names))


def numbered(term: Term, names: dict[int, int]) -> Term:
    if isinstance(term, int):
        return names.setdefault(term, len(names))
    return (term[0], *(numbered(part, names) for part in term[1:]))


def occurring(term: Term) -> Iterator[int]:
    if isinstance(term, int):
        yield term
    else:
        for part in term[1:]:
            yield from occurring(part)


def variables(clause: Clause) -> set[int]:
    return {variable for fact in (*clause[0], clause[1]) for variable in occurring(fact)}


def shift(term: Term, offset: int) -> Term:
    return term + offset if isinstance(term, int) else (term[0], *(shift(part, offset) for part in term[1:]))


def shifted(facts: tuple, offset: int) -> tuple:
    return tuple(shift(fact, offset) for fact in facts)


def apply(term: Term, binding: dict[int, Term]) -> Term:
    if isinstance(term, int):
        return apply(binding[term], binding) if term in binding else term
    return (term[0], *(apply(part, binding) for part in term[1:])) if len(term) > 1 else term


def unify(one: Term, other: Term, binding: dict[int, Term]) -> bool:
    """Makes the two equal by extending the binding; false if nothing can."""
    todo = [(one, other)]
    while todo:
        a, b = todo.pop()
        while isinstance(a, int) and a in binding:
            a = binding[a]
        while isinstance(b, int) and b in binding:
            b = binding[b]
        if a == b:
            continue
        if isinstance(a, int) or isinstance(b, int):
            variable, term = (a, b) if isinstance(a, int) else (b, a)
            if not isinstance(term, int) and variable in occurring(apply(term, binding)):
                return False
            binding[variable] = term
        elif a[0] != b[0] or len(a) != len(b):
            return False
        else:
            todo.extend(zip(a[1:], b[1:]))
    return True


def subsumes(general: Clause, special: Clause) -> bool:
    """Whether `special` says nothing that `general` does not."""
    if len(general[0]) > len(special[0]):
        return False
    binding: dict[int, Term] = {}
    return matches(general[1], special[1], binding) and matches_among(general[0], special[0], binding)


def matches(pattern: Term, term: Term, binding: dict[int, Term]) -> bool:
    if isinstance(pattern, int):
        return binding.setdefault(pattern, term) == term
    if isinstance(term, int) or pattern[0] != term[0] or len(pattern) != len(term):
        return False
    return all(matches(a, b, binding) for a, b in zip(pattern[1:], term[1:]))


def matches_among(patterns: tuple, facts: tuple, binding: dict[int, Term]) -> bool:
    if not patterns:
        return True
    for fact in facts:
        tried = dict(binding)
        if matches(patterns[0], fact, tried) and matches_among(patterns[1:], facts, tried):
            return True
    return False

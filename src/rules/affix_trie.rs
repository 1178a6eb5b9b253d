//! Literals at one end of a value: which of them does it begin with, or end with? One descent of a tree tells, however
//! many lengths they have.
//!
//! The descent looks only at the bytes in which literals differ, one for each branch. It ends at one literal: the value
//! can begin only with this one, or with others that this one begins with itself. So one comparison is enough.

/// The end of the value that is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Front,
    Back,
}

/// Literals, each with what is filed under it.
#[derive(Debug)]
pub(super) struct Ends<T> {
    end: End,
    /// In the order of their bytes as seen from the end.
    literals: Vec<Literal<T>>,
    /// The first is the root.
    branches: Vec<Branch>,
    /// Indices into `branches`. Each branch has a run of them, by byte; `None` where no literal goes on.
    children: Vec<Option<u32>>,
}

#[derive(Debug)]
struct Literal<T> {
    text: Box<[u8]>,
    filed: T,
    /// The longest of the other literals that this one begins with, by its index.
    shorter: Option<u32>,
}

/// A place where literals part that began alike.
#[derive(Clone, Copy, Debug)]
struct Branch {
    /// How many bytes they have in common.
    depth: u32,
    /// The first of them. If the descent ends here, the value can begin only with this one or with those it begins
    /// with.
    literal: u32,
    /// Where its run of `children` starts.
    children: u32,
    /// The length of that run.
    children_count: u16,
    /// The byte that the run starts with.
    first: u8,
}

impl<T> Ends<T> {
    /// No two literals may be the same, and none may be empty.
    pub(super) fn new<'l>(end: End, literals: impl IntoIterator<Item = (&'l str, T)>) -> Ends<T> {
        let seen = |text: &str| match end {
            End::Front => text.bytes().collect::<Vec<u8>>(),
            End::Back => text.bytes().rev().collect(),
        };
        let mut literals: Vec<_> = literals.into_iter().map(|(text, filed)| (seen(text), text, filed)).collect();
        literals.sort_by(|(a, ..), (b, ..)| a.cmp(b));
        let seen: Vec<&[u8]> = literals.iter().map(|(seen, ..)| seen.as_slice()).collect();
        let (branches, children) = grow(&seen);
        let shorter = link_shorter(&seen);
        let literals = literals.into_iter().zip(shorter);
        let literals =
            literals.map(|((_, text, filed), shorter)| Literal { text: text.as_bytes().into(), filed, shorter });
        Ends { end, literals: literals.collect(), branches, children }
    }

    /// Everything filed under literals that the value begins with, or ends with, and their lengths; the longest first.
    #[inline]
    pub(super) fn find(&self, value: &[u8]) -> impl Iterator<Item = (&T, usize)> {
        let (mut next, common) = match self.end {
            End::Front => self.descend(value, |at| value.get(at).copied()),
            End::Back => self.descend(value, |at| value.get(value.len().checked_sub(at + 1)?).copied()),
        };
        std::iter::from_fn(move || {
            while let Some(literal) = next.and_then(|literal| self.literals.get(literal as usize)) {
                next = literal.shorter;
                if literal.text.len() <= common {
                    return Some((&literal.filed, literal.text.len()));
                }
            }
            None
        })
    }

    /// The literal at the end of the descent, and how many of its bytes the value has. `byte` counts from the end that
    /// is looked at.
    #[inline]
    fn descend(&self, value: &[u8], byte: impl Fn(usize) -> Option<u8>) -> (Option<u32>, usize) {
        let Some(mut branch) = self.branches.first() else { return (None, 0) };
        while let Some(child) = self.child(branch, &byte) {
            branch = child;
        }
        let text = &*self.literals[branch.literal as usize].text;
        // Mostly the value has all of the literal, and comparing it as a whole is faster than byte by byte.
        let common = match self.end {
            End::Front if value.starts_with(text) => text.len(),
            End::Back if value.ends_with(text) => text.len(),
            End::Front => common(value.iter(), text.iter()),
            End::Back => common(value.iter().rev(), text.iter().rev()),
        };
        (Some(branch.literal), common)
    }

    #[inline]
    fn child(&self, branch: &Branch, byte: impl Fn(usize) -> Option<u8>) -> Option<&Branch> {
        let at = byte(branch.depth as usize)?.checked_sub(branch.first)?;
        if u16::from(at) >= branch.children_count {
            return None;
        }
        let child = (*self.children.get(branch.children as usize + usize::from(at))?)?;
        self.branches.get(child as usize)
    }
}

/// Makes the branches of sorted literals, and their children. Must not call itself, because literals may part very
/// often.
fn grow(literals: &[&[u8]]) -> (Vec<Branch>, Vec<Option<u32>>) {
    let mut branches = Vec::new();
    let mut children = Vec::new();
    let mut open = vec![(0..literals.len(), None)];
    while let Some((range, parent)) = open.pop() {
        let (Some(first), Some(last)) = (literals[range.clone()].first(), literals[range.clone()].last()) else {
            continue;
        };
        let depth = common(first.iter(), last.iter());
        // Only the first can end here.
        let parting = range.start + usize::from(first.len() == depth)..range.end;
        let bytes = literals.get(parting.start).filter(|_| !parting.is_empty()).map(|it| it[depth]..=last[depth]);
        let children_start = children.len();
        let children_count = bytes.as_ref().map_or(0, |bytes| bytes.len());
        if let Some(parent) = parent {
            children[parent] = Some(branches.len() as u32);
        }
        children.resize(children_start + children_count, None);
        let first_byte = bytes.map_or(0, |bytes| *bytes.start());
        branches.push(Branch {
            depth: depth as u32,
            literal: range.start as u32,
            children: children_start as u32,
            children_count: children_count as u16,
            first: first_byte,
        });
        let mut start = parting.start;
        while start < parting.end {
            let byte = literals[start][depth];
            let count = literals[start..parting.end].partition_point(|it| it[depth] == byte);
            open.push((start..start + count, Some(children_start + usize::from(byte - first_byte))));
            start += count;
        }
    }
    (branches, children)
}

/// For each of the sorted literals, the longest other one that it begins with. That one comes before it.
fn link_shorter(literals: &[&[u8]]) -> Vec<Option<u32>> {
    let mut begun: Vec<usize> = Vec::new();
    let mut shorter = Vec::with_capacity(literals.len());
    for (at, literal) in literals.iter().enumerate() {
        while begun.pop_if(|top| !literal.starts_with(literals[*top])).is_some() {}
        shorter.push(begun.last().map(|top| *top as u32));
        begun.push(at);
    }
    shorter
}

/// How many bytes both have in common from the start.
#[inline]
fn common<'b>(one: impl Iterator<Item = &'b u8>, other: impl Iterator<Item = &'b u8>) -> usize {
    one.zip(other).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn literals_within_literals_of_any_depth() {
        let text = "a".repeat(5000);
        let ends = Ends::new(End::Front, (1..5000).map(|length| (&text[..length], length)));
        let found: Vec<usize> = ends.find(b"aaaab").map(|(filed, _)| *filed).collect();
        assert_eq!(found, [4, 3, 2, 1]);
    }

    proptest! {
        #[test]
        fn finds_every_literal_at_the_end(
            literals in prop::collection::btree_set("[abü]{1,5}", 0..40),
            value in "[abüc]{0,8}",
        ) {
            let filed = || literals.iter().map(|it| (it.as_str(), it.clone()));
            let longest_first = |mut texts: Vec<String>| {
                texts.sort_by_key(|text| usize::MAX - text.len());
                texts
            };
            let front = Ends::new(End::Front, filed());
            let expected = literals.iter().filter(|it| value.starts_with(&**it)).cloned().collect();
            prop_assert_eq!(front.find(value.as_bytes()).map(|(it, _)| it.clone()).collect::<Vec<_>>(), longest_first(expected));
            let back = Ends::new(End::Back, filed());
            let expected = literals.iter().filter(|it| value.ends_with(&**it)).cloned().collect();
            prop_assert_eq!(back.find(value.as_bytes()).map(|(it, _)| it.clone()).collect::<Vec<_>>(), longest_first(expected));
        }
    }
}

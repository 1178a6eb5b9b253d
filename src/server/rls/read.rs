//! From the bytes of a RateLimitRequest to a [`Request`] that borrows from them.

use smallvec::SmallVec;

use crate::request::{Bounds, Descriptor, DescriptorEntry, Hits, LimitOverride, Request, RequestError};
use crate::server::no_answer::NoAnswer;
use crate::server::protobuf::{Malformed, MessageFields};
use crate::server::rls::unit;

/// Reads a request. Checks how many descriptors and entries there are before it keeps them.
pub fn request<'a>(message: &'a [u8], bounds: &Bounds) -> Result<Request<'a>, NoAnswer> {
    let outline = Outline::of(message)?;
    if outline.descriptors > bounds.descriptors_max {
        let refused = match outline.domain {
            "" => RequestError::EmptyDomain,
            _ => RequestError::ManyDescriptors { count: outline.descriptors, max: bounds.descriptors_max },
        };
        return Err(refused.into());
    }
    let mut descriptors: SmallVec<[Descriptor<'a>; 2]> = SmallVec::new();
    // Kept until all is read: that a message is malformed comes before what it asks for.
    let mut refused = None;
    let mut fields = MessageFields::of(message);
    while let Some((number, value)) = fields.read()? {
        if number == 2 {
            let mut wire = WireDescriptor::default();
            wire.read(fields.inner(value)?, bounds)?;
            let descriptor = descriptors.len();
            if wire.entries_count > bounds.entries_max {
                let refused = match outline.domain {
                    "" => RequestError::EmptyDomain,
                    _ => RequestError::ManyEntries { descriptor, count: wire.entries_count, max: bounds.entries_max },
                };
                return Err(refused.into());
            }
            let limit = wire.limit().unwrap_or_else(|unit| {
                refused.get_or_insert(RequestError::UnknownUnit { descriptor, unit });
                None
            });
            let hits = wire.hits(outline.hits_addend);
            descriptors.push(Descriptor { entries: wire.entries, hits, limit });
        }
    }
    match refused.filter(|_| !outline.domain.is_empty()) {
        Some(refused) => Err(refused.into()),
        None => Ok(Request::new(outline.domain, descriptors, bounds)?),
    }
}

/// The domain and the hits of a request, and how many descriptors it has.
#[derive(Debug, Default)]
struct Outline<'a> {
    domain: &'a str,
    descriptors: usize,
    /// As it was written: 0 if it was not.
    hits_addend: u32,
}

impl<'a> Outline<'a> {
    fn of(message: &'a [u8]) -> Result<Outline<'a>, Malformed> {
        let mut outline = Outline::default();
        let mut fields = MessageFields::of(message);
        while let Some((number, value)) = fields.read()? {
            match number {
                1 => outline.domain = fields.text(value)?,
                2 => outline.descriptors += 1,
                3 => outline.hits_addend = fields.integer(value)? as u32,
                _ => {}
            }
        }
        Ok(outline)
    }
}

/// A descriptor as it stands in the message.
#[derive(Debug, Default)]
struct WireDescriptor<'a> {
    entries: SmallVec<[DescriptorEntry<'a>; 4]>,
    /// Includes entries beyond the bound, which are not kept.
    entries_count: usize,
    /// `requests_per_unit` and `unit`.
    limit: Option<(u32, i32)>,
    own_hits: Option<u64>,
    is_negative_hits: bool,
}

impl<'a> WireDescriptor<'a> {
    #[inline]
    fn read(&mut self, mut fields: MessageFields<'a>, bounds: &Bounds) -> Result<(), Malformed> {
        while let Some((number, value)) = fields.read()? {
            match number {
                1 => {
                    let entry = entry(fields.inner(value)?)?;
                    self.entries_count += 1;
                    if self.entries_count <= bounds.entries_max {
                        self.entries.push(entry);
                    }
                }
                2 => self.read_limit(fields.inner(value)?)?,
                3 => self.read_hits(fields.inner(value)?)?,
                4 => self.is_negative_hits = fields.integer(value)? != 0,
                _ => {}
            }
        }
        Ok(())
    }

    /// In protobuf, a message that comes twice is one message, in which later fields win.
    fn read_limit(&mut self, mut fields: MessageFields<'a>) -> Result<(), Malformed> {
        let (requests_per_unit, unit) = self.limit.get_or_insert_default();
        while let Some((number, value)) = fields.read()? {
            match number {
                1 => *requests_per_unit = fields.integer(value)? as u32,
                2 => *unit = fields.integer(value)? as i32,
                _ => {}
            }
        }
        Ok(())
    }

    fn read_hits(&mut self, mut fields: MessageFields<'a>) -> Result<(), Malformed> {
        let hits = self.own_hits.get_or_insert_default();
        while let Some((number, value)) = fields.read()? {
            if number == 1 {
                *hits = fields.integer(value)?;
            }
        }
        Ok(())
    }

    fn hits(&self, hits_addend: u32) -> Hits {
        let of_request = u64::from(hits_addend.max(1));
        match (self.is_negative_hits, self.own_hits) {
            (true, hits) => Hits::Refund(hits.unwrap_or(of_request)),
            (false, Some(hits)) => Hits::Own(hits),
            (false, None) => Hits::OfRequest(of_request),
        }
    }

    /// The limit that the descriptor brings along, if any. The error is the number of a unit that does not exist.
    fn limit(&self) -> Result<Option<LimitOverride>, i32> {
        let Some((requests_per_unit, number)) = self.limit else { return Ok(None) };
        Ok(Some(LimitOverride { requests_per_unit, unit: unit(number).ok_or(number)? }))
    }
}

#[inline]
fn entry<'a>(mut fields: MessageFields<'a>) -> Result<DescriptorEntry<'a>, Malformed> {
    let mut entry = DescriptorEntry { key: "", value: "" };
    while let Some((number, value)) = fields.read()? {
        match number {
            1 => entry.key = fields.text(value)?,
            2 => entry.value = fields.text(value)?,
            _ => {}
        }
    }
    Ok(entry)
}

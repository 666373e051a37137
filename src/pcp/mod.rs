//! The vocabulary of Performance Co-Pilot: identifiers, descriptors, values, error codes. No I/O, no dependencies.
//! Doc comments give the C name (`pmapi.h`), so a search from a man page lands here.

mod error;
mod ids;
mod json;
mod units;
mod value;

pub use error::PmErr;
pub use ids::{Indom, InstId, Pmid, IN_NULL};
pub use json::json_string;
pub use units::{CountScale, Space, Time, Units};
pub use value::{Atom, Desc, EventParam, EventRecord, Sem, Type};

//! The names of all labels that our metrics have.
//!
//! Metrics are written with these names and no others, so that labels of an operator can be checked against them: two labels
//! of one name make a whole scrape invalid.

use std::fmt;

use prometheus_client::encoding::{EncodeLabelKey, LabelKeyEncoder};

/// Declares the names once, as an enum, as a list and as words.
macro_rules! label_names {
    ($($name:ident = $word:literal),* $(,)?) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum LabelName {
            $($name),*
        }

        impl LabelName {
            pub(crate) const ALL: &[LabelName] = &[$(LabelName::$name),*];

            pub(crate) fn word(self) -> &'static str {
                match self {
                    $(LabelName::$name => $word),*
                }
            }
        }
    };
}

label_names! {
    Breaker = "breaker",
    By = "by",
    Class = "class",
    Code = "code",
    Column = "column",
    Domain = "domain",
    ErrType = "err_type",
    File = "file",
    GrpcMethod = "grpc_method",
    Key1 = "key1",
    Key2 = "key2",
    Layer = "layer",
    Line = "line",
    Node = "node",
    Operation = "operation",
    Outcome = "outcome",
    Policy = "policy",
    Reason = "reason",
    Role = "role",
    To = "to",
    Turn = "turn",
    Version = "version",
    Way = "way",
}

/// The label that the text format adds to the buckets of histograms.
const BUCKET: &str = "le";

impl LabelName {
    /// Whether some metric has a label of this name already.
    pub(crate) fn is_taken(name: &str) -> bool {
        name == BUCKET || LabelName::ALL.iter().any(|own| own.word() == name)
    }
}

impl EncodeLabelKey for LabelName {
    fn encode(&self, encoder: &mut LabelKeyEncoder<'_>) -> fmt::Result {
        EncodeLabelKey::encode(&self.word(), encoder)
    }
}

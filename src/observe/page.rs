//! The page of metrics: writes families, single values and histograms.
//!
//! prometheus-client puts `_total` behind every counter of its own. Names of envoyproxy/ratelimit have none, so counters are
//! written the way gauges are, under their own type.

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, EncodeGaugeValue, NoLabelSet};
use prometheus_client::metrics::MetricType;

use crate::measure::times::Times;
use crate::observe::label_name::LabelName;

/// Where metrics are written, one family after the other.
pub(super) struct MetricsPage<'p>(DescriptorEncoder<'p>);

impl<'p> MetricsPage<'p> {
    pub(super) fn new(encoder: DescriptorEncoder<'p>) -> MetricsPage<'p> {
        MetricsPage(encoder)
    }

    pub(super) fn family<'l, V: EncodeGaugeValue>(
        &mut self,
        name: &str,
        help: &str,
        kind: MetricType,
        series: impl IntoIterator<Item = (Vec<(LabelName, &'l str)>, V)>,
    ) -> fmt::Result {
        let mut metric = self.0.encode_descriptor(name, help, None, kind)?;
        for (labels, value) in series {
            metric.encode_family(&labels)?.encode_gauge(&value)?;
        }
        Ok(())
    }

    pub(super) fn single(
        &mut self,
        name: &str,
        help: &str,
        kind: MetricType,
        value: impl EncodeGaugeValue,
    ) -> fmt::Result {
        self.0.encode_descriptor(name, help, None, kind)?.encode_gauge(&value)
    }

    pub(super) fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        self.single(name, help, MetricType::Counter, value)
    }

    pub(super) fn gauge(&mut self, name: &str, help: &str, value: impl EncodeGaugeValue) -> fmt::Result {
        self.single(name, help, MetricType::Gauge, value)
    }

    /// Several histograms of one name, told apart by their labels.
    pub(super) fn histograms<'l>(
        &mut self,
        name: &str,
        help: &str,
        series: impl IntoIterator<Item = (Vec<(LabelName, &'l str)>, &'l Times)>,
    ) -> fmt::Result {
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for (labels, times) in series {
            let mut metric = metric.encode_family(&labels)?;
            metric.encode_histogram::<NoLabelSet>(times.sum_s(), times.count(), times.buckets(), None)?;
        }
        Ok(())
    }

    pub(super) fn histogram(
        &mut self,
        name: &str,
        help: &str,
        labels: &[(LabelName, &str)],
        times: &Times,
    ) -> fmt::Result {
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Histogram)?;
        let mut metric = if labels.is_empty() { metric } else { metric.encode_family(&labels)? };
        metric.encode_histogram::<NoLabelSet>(times.sum_s(), times.count(), times.buckets(), None)
    }
}

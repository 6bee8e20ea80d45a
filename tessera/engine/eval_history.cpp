// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/eval_history.h"

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::engine {
namespace {

constexpr const char* kLoss = "loss";

}  // namespace

double value_of(const EvalReport& report, const tasks::BestRule& rule) {
  if (rule.metric == kLoss) return report.loss;
  if (const Metric* const metric = find_metric(report.metrics, rule.metric)) return metric->mean;
  std::vector<std::string> names = {kLoss};
  for (const Metric& metric : report.metrics) {
    if (metric.name != kLoss) names.push_back(metric.name);
  }
  refuse_metric(rule.metric, names);
}

void refuse_metric(const std::string& metric, const std::vector<std::string>& names) {
  throw Error(Error::Kind::Config,
              fmt::format("eval.best: evaluations of this training have no metric \"{}\"", metric),
              text::suggestion(metric, names));
}

}  // namespace tessera::engine

// SPDX-License-Identifier: Apache-2.0
#include "tessera/report/comms_report.h"

#include <algorithm>

#include <fmt/format.h>

#include "tessera/base/text.h"

namespace tessera::report {

double CommsRow::algbw() const {
  return seconds > 0 ? bytes * static_cast<double>(count) / seconds : 0.0;
}

double CommsRow::busbw() const {
  const double n = ranks;
  if (op == "all_reduce") return algbw() * 2 * (n - 1) / n;
  const bool shared = op == "all_gather" || op == "reduce_scatter" || op.starts_with("all_to_all");
  return shared ? algbw() * (n - 1) / n : algbw();
}

bool CommsCounter::counts(std::string_view op) const {
  return ops_.empty() || std::any_of(ops_.begin(), ops_.end(), [&](const std::string& wanted) {
           const bool message = wanted == "send" || wanted == "recv";
           return wanted.starts_with(op) || (message && op == "message");
         });
}

void CommsCounter::hear(const trace::Span& span) {
  const bool wait = span.kind == trace::Kind::Wait;
  if ((!wait && span.kind != trace::Kind::Collective) || !counts(span.name)) return;
  CommsRow& row = rows_[{std::string(span.name), {span.bytes, span.ranks}}];
  row.op = span.name;
  row.bytes = span.bytes;
  row.ranks = span.ranks;
  if (wait) {
    row.waited += span.seconds();
  } else {
    row.seconds += span.seconds();
    ++row.count;
  }
}

std::vector<CommsRow> CommsCounter::rows() const {
  std::vector<CommsRow> out;
  for (const auto& [key, row] : rows_)
    out.push_back(row);
  return out;
}

std::string comms_table(const std::vector<CommsRow>& rows, const std::vector<double>& fastest) {
  std::string out =
      fmt::format("{:<16} {:>10} {:>6} {:>9} {:>12} {:>10} {:>13} {:>13} {:>12} {:>13}\n",
                  "operation",
                  "size",
                  "ranks",
                  "count",
                  "latency ms",
                  "mean ms",
                  "algbw GB/s",
                  "busbw GB/s",
                  "waited ms",
                  "straggler ms");
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const CommsRow& row = rows[i];
    const double lost = i < fastest.size() ? std::max(0.0, row.waited - fastest[i]) : 0.0;
    out += fmt::format(
        "{:<16} {:>10} {:>6} {:>9} {:>12.3f} {:>10.4f} {:>13.3f} {:>13.3f} {:>12.3f} {:>13.3f}\n",
        row.op,
        text::bytes(static_cast<std::uint64_t>(row.bytes)),
        row.ranks,
        row.count,
        1e3 * row.seconds,
        1e3 * row.mean_s(),
        row.algbw() / 1e9,
        row.busbw() / 1e9,
        1e3 * row.waited,
        1e3 * lost);
  }
  return out;
}

}  // namespace tessera::report

// SPDX-License-Identifier: Apache-2.0
// Traces in the format of Chrome's trace viewer, which Perfetto reads as well.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/trace.h"

namespace tessera::report {

/// Records the spans that its thread reports while it exists.
class TraceRecorder final : public trace::Listener {
 public:
  explicit TraceRecorder(int rank) : rank_(rank) {}
  void hear(const trace::Span& span) override;
  /// Returns the events of this rank: JSON objects separated by ",\n". Times are those of the
  /// host's monotonic clock, which all ranks of a host share. Process numbers are ranks. Spans nest
  /// on one track; collectives, which overlap with computation, are on another.
  [[nodiscard]] std::string events(std::string_view what) const;
  [[nodiscard]] std::size_t size() const { return kept_.size(); }

 private:
  struct Kept {
    trace::Kind kind;
    std::string name, detail;
    double begin, end, flops, bytes;
    int ranks;
  };
  int rank_;
  std::vector<Kept> kept_;
};

/// Returns a whole file with the events of several ranks. Source: Trace Event Format, Google 2016.
std::string trace_file(const std::vector<std::string>& events);

}  // namespace tessera::report

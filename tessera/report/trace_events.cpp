// SPDX-License-Identifier: Apache-2.0
#include "tessera/report/trace_events.h"

#include <fmt/format.h>

#include "tessera/base/text.h"
#include "tessera/config/json.h"

namespace tessera::report {
namespace {

constexpr int kComputes = 0, kTransfers = 1;  // tracks

std::string quoted(const std::string& text) {
  return json::Value::string(text::replace_invalid_utf8(text)).dump();
}

std::string track_name(int rank, int track, const char* name) {
  return fmt::format(
      R"({{"ph":"M","name":"thread_name","pid":{},"tid":{},"args":{{"name":"{}"}}}})",
      rank,
      track,
      name);
}

}  // namespace

void TraceRecorder::hear(const trace::Span& span) {
  kept_.push_back({span.kind,
                   std::string(span.name),
                   std::string(span.detail),
                   span.begin,
                   span.end,
                   span.flops,
                   span.bytes,
                   span.ranks});
}

std::string TraceRecorder::events(std::string_view what) const {
  std::string out =
      fmt::format(R"({{"ph":"M","name":"process_name","pid":{},"args":{{"name":{}}}}})",
                  rank_,
                  quoted(fmt::format("rank {} ({})", rank_, what)));
  out += ",\n" + track_name(rank_, kComputes, "computes and waits");
  out += ",\n" + track_name(rank_, kTransfers, "collectives under way");
  std::size_t number = 0;
  for (const Kept& span : kept_) {
    std::string args = fmt::format(R"("detail":{})", quoted(span.detail));
    if (span.flops > 0) args += fmt::format(R"(,"flops":{:.0f})", span.flops);
    if (span.bytes > 0) args += fmt::format(R"(,"bytes":{:.0f})", span.bytes);
    if (span.ranks > 1) args += fmt::format(R"(,"ranks":{})", span.ranks);
    // Names distinguish blocks best.
    const std::string name = span.kind == trace::Kind::Block  ? span.detail + " " + span.name
                             : span.kind == trace::Kind::Wait ? "wait: " + span.name
                                                              : span.name;
    const std::string common = fmt::format(
        R"("name":{},"cat":"{}","pid":{})", quoted(name), trace::name(span.kind), rank_);
    const double begin_us = span.begin * 1e6, end_us = span.end * 1e6;
    if (span.kind == trace::Kind::Collective) {
      const std::string id = fmt::format(R"("id":"{}.{}")", rank_, ++number);
      out += fmt::format(",\n{{\"ph\":\"b\",{},\"tid\":{},{},\"ts\":{:.3f},\"args\":{{{}}}}}",
                         common,
                         kTransfers,
                         id,
                         begin_us,
                         args);
      out += fmt::format(
          ",\n{{\"ph\":\"e\",{},\"tid\":{},{},\"ts\":{:.3f}}}", common, kTransfers, id, end_us);
    } else {
      out += fmt::format(
          ",\n{{\"ph\":\"X\",{},\"tid\":{},\"ts\":{:.3f},\"dur\":{:.3f},\"args\":{{{}}}}}",
          common,
          kComputes,
          begin_us,
          end_us - begin_us,
          args);
    }
  }
  return out;
}

std::string trace_file(const std::vector<std::string>& events) {
  return "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n" + text::join(events, ",\n") + "\n]}\n";
}

}  // namespace tessera::report

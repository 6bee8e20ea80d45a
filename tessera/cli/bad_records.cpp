// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/bad_records.h"

#include <string_view>

#include <fmt/format.h>

#include "tessera/base/error.h"

namespace tessera::cli {

void BadRecordFlag::declare(Arguments& arguments, const std::string& skipped) {
  arguments.option(
      "--on-bad-record",
      &given,
      fmt::format("A record that cannot be read, such as one with an empty text: stop ends the "
                  "command and reports its place, skip {} [as in the run; else stop]",
                  skipped));
}

void BadRecordFlag::apply(data::DataOptions& options, const tasks::Task& task) const {
  if (given.empty()) return;
  TESSERA_REQUIRE(given == "stop" || given == "skip",
                  Config,
                  fmt::format("--on-bad-record {}: expected stop or skip", given),
                  "write --on-bad-record skip");
  TESSERA_REQUIRE(task.reads_records(),
                  Config,
                  "--on-bad-record: the model reads texts, not records",
                  "leave it out");
  options.on_bad_record = given;
}

void naming_bad_record_flag(const std::function<void()>& read) {
  constexpr std::string_view kKey = "data.on_bad_record \"skip\"";
  try {
    read();
  } catch (const Error& error) {
    std::string fix = error.fix();
    const std::size_t at = fix.find(kKey);
    if (at == std::string::npos) throw;
    throw Error(error.kind(), error.what(), fix.replace(at, kKey.size(), "--on-bad-record skip"));
  }
}

}  // namespace tessera::cli

// SPDX-License-Identifier: Apache-2.0
#include "tessera/rlhf/roll_back.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/files.h"
#include "tessera/base/log.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/folders.h"
#include "tessera/config/json.h"
#include "tessera/engine/shared_values.h"
#include "tessera/rlhf/ledger.h"

namespace tessera::rlhf {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFile = "roll_backs.jsonl";

/// Calls take(step that the run went back to, number of times, line) for every line.
void for_each_return(
    const fs::path& path,
    const std::function<void(std::int64_t to, std::int64_t times, const std::string& line)>& take) {
  if (!fs::exists(path)) return;
  for (const std::string& text : text::split(files::read(path), '\n')) {
    if (text.empty()) continue;
    const json::Value line = json::parse_strict(text, path.string());
    const json::Value* const to = line.is_object() ? line.find("to") : nullptr;
    const json::Value* const times = line.is_object() ? line.find("times") : nullptr;
    TESSERA_REQUIRE(to != nullptr && times != nullptr && to->as_integer() && times->as_integer(),
                    Format,
                    fmt::format("{}: a line is {}", path.string(), text),
                    "move the file aside; the run then forgets how often it went back");
    take(*to->as_integer(), *times->as_integer(), text);
  }
}

std::optional<std::int64_t> newest_up_to(const fs::path& checkpoints, std::int64_t limit) {
  std::optional<std::int64_t> out;
  for (const fs::path& folder : checkpoint::list(checkpoints)) {
    const std::int64_t step = *checkpoint::step_of(folder);
    if (step <= limit) out = std::max(out.value_or(step), step);
  }
  return out;
}

/// Appends a line by replacing the file, so that a kill leaves no half of one.
void append(const fs::path& path, const json::Value& line) {
  const std::string before = fs::exists(path) ? files::read(path) : std::string();
  files::write_atomic(path, before + line.dump() + "\n");
}

/// Returns the step to go back to.
std::int64_t prepare(const engine::RunFolder& folder, const RollBackTarget& target) {
  const std::optional<std::int64_t> to = newest_up_to(folder.checkpoints(), target.newest);
  TESSERA_REQUIRE(to.has_value(),
                  Numeric,
                  fmt::format("{}; the run cannot go back, because no checkpoint has {} updates or "
                              "fewer",
                              target.what,
                              std::max<std::int64_t>(target.newest, 0)),
                  target.fix);
  const std::optional<fs::path> aside = folder.move_later_aside(*to);
  // The policy of the checkpoint writes its rollout again, with other random numbers.
  const Ledger shortened(folder.path() / "rollouts.jsonl", *to - 1);
  json::Value line = json::Value::object({{"times", json::Value::integer(target.times)},
                                          {"alarm", json::Value::string(target.alarm)},
                                          {"what", json::Value::string(target.what)},
                                          {"after", json::Value::integer(target.after)},
                                          {"to", json::Value::integer(*to)}});
  if (aside) line["aside"] = json::Value::string(aside->string());
  append(folder.path() / kFile, line);
  log::warn(
      fmt::format("after {} updates: {}; the run goes back to the checkpoint of {} updates "
                  "and continues with other random numbers ({} of at most rl.roll_back.most)",
                  target.after,
                  target.what,
                  *to,
                  target.times == 1 ? "once" : fmt::format("{} times", target.times)));
  return *to;
}

}  // namespace

RollBack::RollBack(RollBackTarget target)
    : engine::Rewind(Error(Kind::Numeric, target.what, target.fix),
                     [target](comm::World& world, const engine::RunFolder& folder) {
                       return go_back(world, folder, RollBack(target));
                     }),
      target_(std::move(target)) {}

fs::path go_back(comm::World& world, const engine::RunFolder& folder, const RollBack& alarm) {
  std::optional<Error> failure;
  std::vector<double> to = {0.0};  // the step and 1; 0: there is none
  if (world.is_leader()) {
    try {
      to[0] = 1.0 + static_cast<double>(prepare(folder, alarm.target()));
    } catch (const Error& error) {
      failure = error;
    }
  }
  engine::share_with_all(world, to, "the checkpoint to go back to");
  if (failure) throw Error(*failure);
  if (to[0] == 0.0) throw Error(alarm);
  return folder.checkpoints() / checkpoint::step_name(static_cast<std::int64_t>(to[0]) - 1);
}

std::int64_t roll_backs_up_to(const fs::path& run_dir, std::int64_t step, std::int64_t known) {
  for_each_return(run_dir / kFile,
                  [&](std::int64_t to, std::int64_t times, const std::string& /*line*/) {
                    if (to <= step) known = std::max(known, times);
                  });
  return known;
}

void forget_roll_backs_after(const fs::path& run_dir, std::int64_t step) {
  std::string kept;
  bool drops = false;
  for_each_return(run_dir / kFile,
                  [&](std::int64_t to, std::int64_t /*times*/, const std::string& line) {
                    drops = drops || to > step;
                    if (to <= step) kept += line + "\n";
                  });
  if (drops) files::write_atomic(run_dir / kFile, kept);
}

}  // namespace tessera::rlhf

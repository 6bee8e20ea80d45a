// SPDX-License-Identifier: Apache-2.0
// What was said before a text: the turns of a dialogue that a record keeps beside its last one.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tessera/config/choices.h"
#include "tessera/config/fields.h"
#include "tessera/data/records.h"

namespace tessera::tasks {

/// Which turns are read in front of a text: the last ones, as many as fit, or of these the user's
/// alone, or none.
enum class HistoryTurns : std::uint8_t { Window, Questions, None };
constexpr auto kHistoryTurns =
    std::to_array<config::Named<HistoryTurns>>({{HistoryTurns::Window, "window"},
                                                {HistoryTurns::Questions, "questions"},
                                                {HistoryTurns::None, "none"}});

struct HistoryOptions {
  std::string field;  ///< empty: "history", where a record has it
  HistoryTurns turns = HistoryTurns::Window;
  std::int64_t most = 0;  ///< turns at most; 0: any number
  void describe(config::Fields& fields);
};

struct Turn {
  bool user = true;
  std::string text;
  bool operator==(const Turn&) const = default;
};

/// The turns of a record, the oldest first; none where the field is absent, null or empty. It holds
/// messages ({role, content} or {from, value}), pairs [question, answer], or texts of which the
/// first, the third and so on are the user's: a list of them, the same as JSON in a text, or lines
/// of a text. Turns of the system are left out. Error{Data} for another value.
std::vector<Turn> history_of(const data::Record& record, const HistoryOptions& options);

/// The text with as many of the last turns in front of it as `fits` allows, a line each. `text`
/// itself may be too long.
std::string with_history(const std::vector<Turn>& turns,
                         const HistoryOptions& options,
                         const std::string& text,
                         const std::function<bool(const std::string&)>& fits);

}  // namespace tessera::tasks

// SPDX-License-Identifier: Apache-2.0
// The history of a text: earlier turns of a dialogue, which a record has in addition to its last
// turn.
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

/// The turns that are put before a text: the last ones, as many as fit, or only the user's among
/// these, or none.
enum class HistoryTurns : std::uint8_t { Window, Questions, None };
constexpr auto kHistoryTurns =
    std::to_array<config::Named<HistoryTurns>>({{HistoryTurns::Window, "window"},
                                                {HistoryTurns::Questions, "questions"},
                                                {HistoryTurns::None, "none"}});

struct HistoryOptions {
  std::string field;  ///< empty: "history", if the record has this field
  HistoryTurns turns = HistoryTurns::Window;
  std::int64_t most = 0;  ///< maximum number of turns; 0: unlimited
  void describe(config::Fields& fields);
};

struct Turn {
  bool user = true;
  std::string text;
  bool operator==(const Turn&) const = default;
};

/// Returns the turns of a record, oldest first; none if the field is absent, null or empty. It
/// contains messages ({role, content} or {from, value}), pairs [question, answer], or texts of
/// which the first, the third and so on are the user's: as a list, as JSON in a text, or as lines
/// of a text. Turns of the system are left out. Throws Error{Data} for another value.
std::vector<Turn> history_of(const data::Record& record, const HistoryOptions& options);

/// Returns the text preceded by as many of the last turns as `fits` allows, one per line. `text`
/// itself may be too long.
std::string with_history(const std::vector<Turn>& turns,
                         const HistoryOptions& options,
                         const std::string& text,
                         const std::function<bool(const std::string&)>& fits);

}  // namespace tessera::tasks

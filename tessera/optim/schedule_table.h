// SPDX-License-Identifier: Apache-2.0
// Schedules as rows of a table: parameters, the rate during the warm-up, and the rate after it.
//
//   const bool kMine = add_schedules({{"Triangle",
//                                      {{"warmup_num_steps", &Given::warmup, 10, {.min = 1}}},
//                                      .rise = [](const Given& v, std::int64_t t) { ... },
//                                      .fall = [](const Given& v, std::int64_t t) { ... }}});
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tessera/config/choices.h"
#include "tessera/config/fields.h"
#include "tessera/config/json.h"
#include "tessera/optim/curve.h"
#include "tessera/optim/schedule.h"

namespace tessera::optim {

/// The shape of a part of a schedule.
enum class DecayShape : std::uint8_t { Linear, Cosine, SquareRoot, Log };

/// The values of one schedule. A row reads the members that its parameters name; the others keep
/// these values, so that rates may use them.
struct Given {
  double base = 0.0;  ///< the optimizer's learning rate
  std::int64_t warmup = 0;
  std::int64_t total = 0;  ///< the step at which a decay ends; if not given, the run's length
  std::int64_t size = 1;   ///< steps of an interval, or of a part
  std::int64_t waves = 1;
  std::int64_t start = -1;
  std::optional<std::int64_t> length, stable, unused;
  double first = 0.0, high = 0.0, low = 0.0, share = 0.0;
  double power = 1.0, gamma = 1.0, cycles = 0.5;
  std::optional<double> peak, lowest, lowest_share, first_share;
  std::optional<double> warmup_share;  ///< of the run's steps, if there are no warm-up steps
  bool staircase = false;
  DecayShape rises = DecayShape::Linear, falls = DecayShape::Linear;
  std::vector<double> milestones;

  /// Returns `peak`, or the optimizer's rate.
  [[nodiscard]] double top() const { return peak.value_or(base); }
};

/// The names that a parameter has for shapes.
using ShapeNames = std::span<const config::Named<DecayShape>>;

/// A parameter of scheduler.params and the value that it sets.
struct ScheduleParam {
  using Member = std::variant<std::int64_t Given::*,
                              double Given::*,
                              bool Given::*,
                              DecayShape Given::*,
                              std::optional<std::int64_t> Given::*,
                              std::optional<double> Given::*,
                              std::vector<double> Given::*>;
  std::string_view key;
  Member member;
  double otherwise = 0.0;  ///< the default of a number
  config::Doc doc = {};    ///< limits and unit; the text is the remedy for a missing value
  ShapeNames shapes = {};
  DecayShape shape = DecayShape::Linear;  ///< the default of a shape
};

/// The facts that a check of a row sees besides the values.
struct ScheduleCheck {
  const json::Value& params;
  const ScheduleContext& context;
  config::Problems& problems;
};

struct ScheduleRow {
  using Rate = double (*)(const Given&, std::int64_t t);
  std::string_view type;
  std::vector<ScheduleParam> params;
  Rate rise = nullptr;  ///< the rate of step t < warmup, if there is a warm-up
  Rate fall = nullptr;  ///< the rate of the other steps
  /// Reports values that do not fit together, and computes values that follow from others.
  void (*check)(Given&, const ScheduleCheck&) = nullptr;
  std::int64_t first_update = 1;  ///< t = update - first_update
  /// The total that must come after the warm-up if it is given, because the library computes no
  /// rate otherwise.
  std::string_view total_after_warmup = {};
  /// If one of these is given, the row decides for its type instead of the row without such
  /// parameters. For names that two libraries share, since case does not matter in names.
  std::vector<std::string_view> selected_by = {};
};

/// Registers the rows as schedules, before main: static const bool kMine = add_schedules({...}).
/// Returns true.
bool add_schedules(std::vector<ScheduleRow> rows);

}  // namespace tessera::optim

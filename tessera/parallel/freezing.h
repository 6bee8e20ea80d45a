// SPDX-License-Identifier: Apache-2.0
// Parameters that are trained only during a part of a training: groups with frozen_until or
// frozen_from, and gradual unfreezing from the last layer to the first.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tessera/config/fields.h"
#include "tessera/config/json.h"
#include "tessera/nn/block.h"
#include "tessera/optim/options.h"
#include "tessera/optim/rule.h"

namespace tessera::parallel {

struct ParamGroup;

/// The progress of a training: its updates so far, and the epoch of the next batch, from 0.
struct Progress {
  std::int64_t steps = 0, epoch = 0;
};

/// A point of a training: after a number of steps, or after a number of epochs.
struct Moment {
  std::int64_t count = 0;
  bool epochs = false;
  [[nodiscard]] bool reached(const Progress& now) const {
    return (epochs ? now.epoch : now.steps) >= count;
  }
  /// "step 100", "2 epochs".
  [[nodiscard]] std::string text() const;
  bool operator==(const Moment&) const = default;
};

/// Reads a number of steps, "epoch", or "N epochs"; empty, after it has reported the problem under
/// `path`, for any other value. Null means that there is none.
std::optional<Moment> read_moment(const json::Value& value,
                                  const std::string& path,
                                  config::Problems& problems);

/// The parameters with a schedule. Parameters with the same schedule form a set.
class FreezeSchedule {
 public:
  /// The part of a training in which a set is trained.
  struct Span {
    Moment until;                ///< frozen before
    std::optional<Moment> from;  ///< frozen again from here on
    [[nodiscard]] bool frozen(const Progress& now) const {
      return !until.reached(now) || (from && from->reached(now));
    }
    bool operator==(const Span&) const = default;
  };

  /// Parameters that are trained from the first to the last step need not be added.
  void add(const std::string& parameter, const Span& span);
  [[nodiscard]] bool any() const { return !spans_.empty(); }
  /// The set of the parameter, counted from 1; 0 if it has no schedule.
  [[nodiscard]] int set_of(const std::string& parameter) const;
  /// Returns for each set, in the order of their numbers, true if it is frozen.
  [[nodiscard]] std::vector<bool> frozen_sets(const Progress& now) const;
  /// True if no parameter of the model is trained while these sets are frozen.
  [[nodiscard]] bool freezes_all(const std::vector<bool>& frozen) const;
  /// True if a trained parameter has no schedule.
  void leave_some() { some_always_ = true; }
  [[nodiscard]] const std::vector<Span>& spans() const { return spans_; }
  [[nodiscard]] const std::map<std::string, int>& sets() const { return sets_; }

 private:
  std::map<std::string, int> sets_;  ///< by name, counted from 1
  std::vector<Span> spans_;
  bool some_always_ = false;  ///< a parameter is trained from the first to the last step
};

/// The schedule of the plan's groups and gradual unfreezing. `trained` are the names of the
/// parameters that are not frozen for the whole training. Reports keys without effect, and a
/// training that begins or ends with all parameters frozen.
FreezeSchedule make_freeze_schedule(const optim::UnfreezingOptions& options,
                                    const std::vector<ParamGroup>& groups,
                                    const nn::Model& model,
                                    const std::vector<std::string>& trained,
                                    config::Problems& problems,
                                    const config::Origins& origins);
/// Reports rules whose state cannot begin in the middle of a training, and adapters.
void check_freeze_schedule(const FreezeSchedule& schedule,
                           const optim::UnfreezingOptions& options,
                           const nn::Model& model,
                           bool has_adapter,
                           const optim::Rule& rule,
                           config::Problems& problems,
                           const config::Origins& origins);
/// A note for the user about what is trained when; empty without a schedule.
std::vector<std::string> freezing_notes(const FreezeSchedule& schedule);

}  // namespace tessera::parallel

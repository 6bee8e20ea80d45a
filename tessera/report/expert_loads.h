// SPDX-License-Identifier: Apache-2.0
// The loads of the experts of a run: the file experts.json of its folder, a picture, and what is
// wrong with them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tessera/config/json.h"

namespace tessera::report {

/// The choices of the experts of one sparse layer.
struct LayerLoads {
  std::string layer;                 ///< "h.0"
  std::vector<std::int64_t> chosen;  ///< of each expert, including dropped ones
  std::int64_t dropped = 0;

  /// The largest load divided by the mean one; 1 is perfect, 0 without choices.
  [[nodiscard]] double unevenness() const;
  /// The entropy of the loads divided by that of equal ones; 1 is perfect, and without choices.
  [[nodiscard]] double relative_entropy() const;
  [[nodiscard]] double dropped_share() const;
  [[nodiscard]] std::int64_t total() const;
};

/// The sums over the last `steps` steps of a training, up to `step`.
struct ExpertLoads {
  std::int64_t step = 0, steps = 0;
  std::vector<LayerLoads> layers;
  /// Adds a step: the layers are the same as before, or there are none yet.
  void add(std::int64_t at, const std::vector<LayerLoads>& of_step);
};

/// {"step": 40, "steps": 10, "layers": [{"name": "h.0", "chosen": [12, ...], "dropped": 0}, ...]}
json::Value json_of(const ExpertLoads& loads);
/// Reads it. Throws Error{Format} with `where` unless it has this form, with at most 4096 layers of
/// at most 65536 experts and numbers from 0 to 2^53.
ExpertLoads expert_loads_of(const json::Value& value, const std::string& where);
/// Reads experts.json of a run; without layers if the run has none. Throws Error{Format},
/// Error{Io}.
ExpertLoads read_expert_loads(const std::filesystem::path& run);

/// An SVG with a row for each layer and a cell for each expert: white without choices, darker with
/// more of them, red above twice the mean. Of more than 128 layers or 512 experts the first ones
/// are drawn. Text only.
std::string experts_plot(const ExpertLoads& loads);

/// Sentences about experts without choices, those with more than three times the mean load, and
/// layers that drop more than a tenth of the choices. Empty if all is well, or if there are too few
/// choices to tell: less than 16 for each expert.
std::vector<std::string> expert_findings(const ExpertLoads& loads);

}  // namespace tessera::report

// SPDX-License-Identifier: Apache-2.0
// The registry of objectives. An objective is the last block of a model: the final norm of the
// trunk, a head, and the loss. To add one, add one file in models/objectives/ that ends with
// TESSERA_OBJECTIVE.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/registry.h"
#include "tessera/config/fields.h"
#include "tessera/config/json.h"
#include "tessera/models/trunk.h"
#include "tessera/nn/block.h"

namespace tessera::models {

/// Makes the last block of a model over `trunk`, with the name "head". `options` is a JSON object
/// with the objective's own options; errors in it are added to `problems` with their places.
using ObjectiveFactory = nn::BlockSpec (*)(const TrunkOutput& trunk,
                                           const json::Value& options,
                                           config::Problems& problems,
                                           config::Origins& origins);
Registry<ObjectiveFactory>& objectives();
#define TESSERA_OBJECTIVE(name, factory) \
  static const bool tessera_objective_##factory = ::tessera::models::objectives().add(name, factory)

/// The objective under which a trained model is saved, if its training objective needs more than a
/// head: a model trained on preferences is saved as one that continues text.
struct KeptObjective {
  std::string name;
  json::Value options = json::Value::object();
};
/// Maps a training objective to the one under which the model is saved; an absent objective is
/// saved as itself.
Registry<KeptObjective>& kept_objectives();
#define TESSERA_OBJECTIVE_KEPT_AS(name, key, ...)  \
  static const bool tessera_kept_objective_##key = \
      ::tessera::models::kept_objectives().add(name, __VA_ARGS__)

/// Returns whether models of this objective continue texts, so that they can generate: it is, or is
/// saved as, causal_lm, prefix_lm or seq2seq.
bool continues_texts(const std::string& objective);

/// Returns the loss of an objective as lines of plain text with the numbers of `options`; none for
/// invalid options. The first line is the loss itself, the others define its symbols.
using ObjectiveFormula = std::vector<std::string> (*)(const json::Value& options);
/// By the names of objectives(); an objective without a formula is absent.
Registry<ObjectiveFormula>& objective_formulas();
#define TESSERA_OBJECTIVE_FORMULA(name, key, formula) \
  static const bool tessera_objective_formula_##key = \
      ::tessera::models::objective_formulas().add(name, formula)

/// Returns the options of an objective; nothing if they are invalid.
template <class Options>
std::optional<Options> valid_options(const json::Value& written) {
  Options out;
  config::Problems problems;
  config::Origins origins;
  config::read(written, out, problems, origins);
  return problems.empty() ? std::optional(std::move(out)) : std::nullopt;
}

/// The trunk with an objective as its last block. Throws Error{Config} for an unknown objective,
/// with the nearest name, and for invalid options.
nn::Model with_objective(Trunk trunk,
                         std::string_view objective,
                         const json::Value& options = json::Value::object());

}  // namespace tessera::models

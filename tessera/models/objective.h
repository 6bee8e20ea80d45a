// SPDX-License-Identifier: Apache-2.0
// The registry of objectives. An objective is the last block of a model: the final norm of the
// trunk, a head, and the loss. To add one, add one file in models/objectives/ that ends with
// TESSERA_OBJECTIVE.
#pragma once

#include <cstdint>
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

/// The kind of output of the head of an objective.
enum class Predicts : std::uint8_t {
  Other,              ///< something that only the objective knows
  NextToken,          ///< of a text in which each token sees those before it
  NextTokenOfPrefix,  ///< the same, and the tokens of a prefix see each other
  AnswerToken,        ///< the next token of a text that answers a source text
  HiddenToken,        ///< tokens that were hidden from the model
  TokenClass,
  TextClass,  ///< classes, scores or numbers of a whole text
  ImageClass,
  TokenValue,
  TextVector,
};
/// The properties of an objective by which the rest of the program chooses what to do.
struct ObjectiveTraits {
  Predicts predicts = Predicts::Other;
  /// True if the first term of the loss is the cross-entropy of tokens of the vocabulary, whose
  /// exponential is the perplexity.
  bool has_perplexity = false;
  /// True if a teacher's logits of the same shape can be learned besides (models/objectives/
  /// distilled.cpp).
  bool distills = false;
};
Registry<ObjectiveTraits>& objective_traits();
#define TESSERA_OBJECTIVE_TRAITS(name, key, ...)     \
  static const bool tessera_objective_traits_##key = \
      ::tessera::models::objective_traits().add(name, __VA_ARGS__)
/// Returns the traits of an objective. One without its own has the head of that under which it is
/// saved, and another loss; one that is saved as itself predicts something else.
ObjectiveTraits traits_of(const std::string& objective);

/// The objective of a model that names none.
constexpr std::string_view kDefaultObjective = "causal_lm";

/// Returns whether models of this objective continue texts, so that they can generate.
bool continues_texts(const std::string& objective);
/// Returns whether the head is one that a model which was trained on texts alone does not have, so
/// that an adapter trains it as a whole.
bool has_new_head(const std::string& objective);

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

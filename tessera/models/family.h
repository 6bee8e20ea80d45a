// SPDX-License-Identifier: Apache-2.0
// The registry of model families. A family is pure data and functions without files: its options,
// its presets, how options become blocks, and its names in other programs' files.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/registry.h"
#include "tessera/config/fields.h"
#include "tessera/config/json.h"
#include "tessera/models/options.h"
#include "tessera/models/sizes.h"
#include "tessera/models/trunk.h"
#include "tessera/models/weight_map.h"
#include "tessera/nn/block.h"

namespace tessera::models {

/// An objective of models::objectives() and its options.
struct ObjectiveChoice {
  std::string name = {};  ///< empty: the one that the family is trained for
  json::Value options = json::Value::object();
};

/// What the rest of the program needs to know of any model.
struct Resolved {
  json::Value
      description;  ///< resolved `model` section: written to config.json and compared at resume
  Trunk trunk;      ///< all blocks but the objective
  /// Options that the family passes to its objective; only what is not the objective's default.
  json::Value objective_options = json::Value::object();
  nn::Model model;  ///< the trunk and the objective
  /// By name, and the options that were chosen for it. A family whose options say what a model is
  /// trained for names it, in place of Family::objective.
  ObjectiveChoice objective;
  std::int64_t vocab_size = 0;
  std::int64_t tokenizer_size = 0;
  std::int64_t max_positions = 0;
  std::int64_t num_parameters = 0;
  std::int64_t num_layers = 0, hidden_size = 0, num_heads = 0, num_kv_heads = 0;
  bool tied_head = false;  ///< the head uses the token table as its weight
  /// Key of the section `model` -> where its value comes from if it is not given: "preset nano".
  std::map<std::string, std::string> derivations;
};

/// Fills [begin, end) elements (row-major, global) of the named parameter from files, as fp32.
using WeightSource =
    std::function<void(const ParamInfo& info, std::int64_t begin, std::int64_t end, float* out)>;

/// A key that may be given beside `model.from` and then overrides the source's value.
struct Adjustable {
  std::string key;
  std::vector<std::string> resets = {};  ///< keys whose values in the source it replaces too
};

struct Family {
  /// The defaults.
  std::function<std::unique_ptr<FamilyOptions>()> options;
  std::vector<Preset> presets;
  std::vector<Adjustable> adjustable;
  /// Options of this family, `tokenizer_size` and `sequence_length` -> a trunk and the facts of the
  /// model with a language-model head; models::resolve() adds the objective. Pure: never opens
  /// `model.from` (see merge_options). The description leaves out preset and from. Checks between
  /// keys go to `problems`.
  std::function<Resolved(const FamilyOptions& options,
                         std::int64_t tokenizer_size,
                         std::optional<std::int64_t> sequence_length,
                         config::Problems& problems,
                         const config::Origins& origins)>
      resolve;
  /// Reads Hugging Face's config.json: every key that changes what the model computes is honoured
  /// or refused by name; keys of other tasks or libraries pass. Absent keys have Hugging Face's
  /// defaults. Error{Format}, Error{Unsupported}.
  std::function<std::unique_ptr<FamilyOptions>(const json::Value& hf_config)> from_hf;
  /// The reverse, for options that are resolved: every size is given. Error{Unsupported} for what
  /// Hugging Face's architecture has no key for.
  std::function<json::Value(const FamilyOptions& options)> to_hf;
  /// Names and layouts under Hugging Face's names.
  WeightMap weight_map;
  /// Whether a configuration without `model.family` means this family.
  bool is_default = false;
  /// The objective of a model for which nobody names one.
  std::string objective = "causal_lm";
  /// model_types of files in which such a model is the part that reads and writes text: their
  /// `text_config` is its config.json.
  std::vector<std::string> text_of = {};
};

/// A family as its file declares it: with functions of its own options type.
template <class Options>
struct FamilyOf {
  std::vector<Preset> presets;
  std::vector<Adjustable> adjustable;
  std::function<Resolved(const Options& options,
                         std::int64_t tokenizer_size,
                         std::optional<std::int64_t> sequence_length,
                         config::Problems& problems,
                         const config::Origins& origins)>
      resolve;
  std::function<Options(const json::Value& hf_config)> from_hf;
  std::function<json::Value(const Options& options)> to_hf;
  WeightMap weight_map;
  bool is_default = false;
  std::string objective = "causal_lm";
  std::vector<std::string> text_of = {};

  [[nodiscard]] Family family() const {
    const auto own = [](const FamilyOptions& options) -> const Options& {
      const auto* found = dynamic_cast<const Options*>(&options);
      TESSERA_ASSERT(found != nullptr);
      return *found;
    };
    return {
        .options = [] { return std::make_unique<Options>(); },
        .presets = presets,
        .adjustable = adjustable,
        .resolve =
            [own, resolve = resolve](const FamilyOptions& options,
                                     std::int64_t tokenizer_size,
                                     std::optional<std::int64_t> sequence_length,
                                     config::Problems& problems,
                                     const config::Origins& origins) {
              return resolve(own(options), tokenizer_size, sequence_length, problems, origins);
            },
        .from_hf =
            [from_hf = from_hf](const json::Value& config) {
              return std::make_unique<Options>(from_hf(config));
            },
        .to_hf = [own, to_hf = to_hf](const FamilyOptions& options) { return to_hf(own(options)); },
        .weight_map = weight_map,
        .is_default = is_default,
        .objective = objective,
        .text_of = text_of};
  }
};

Registry<Family>& families();
/// The family of a configuration that names none.
const std::string& default_family();
/// The name of the family that a config.json of a Hugging Face folder asks for, or of the one that
/// is its text_config (Family::text_of): Error{Unsupported} with the nearest one that is built.
std::string family_of_hf(const json::Value& hf_config);
/// The options that a config.json of a Hugging Face folder describes. Errors as Family::from_hf.
ModelOptions options_from_hf(const json::Value& hf_config);
/// Family::resolve of the options' family, completed with the objective. Error{Config} for an
/// unknown objective, for options that it lacks, and for a trunk that it cannot complete.
Resolved resolve(const ModelOptions& options,
                 std::int64_t tokenizer_size,
                 std::optional<std::int64_t> sequence_length,
                 config::Problems& problems,
                 const config::Origins& origins,
                 const ObjectiveChoice& objective = {});
/// Registers a family: TESSERA_MODEL("name", FamilyOf<Options>{...}).
#define TESSERA_MODEL(name, ...)               \
  static const bool tessera_model_registered = \
      ::tessera::models::families().add(name, (__VA_ARGS__).family())

}  // namespace tessera::models

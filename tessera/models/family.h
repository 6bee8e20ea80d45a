// SPDX-License-Identifier: Apache-2.0
// The registry of model families. A family consists of data and functions that open no files: its
// options, its presets, the conversion of options to blocks, and its names in other programs'
// files.
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
  std::string name = {};  ///< empty: the family's default
  json::Value options = json::Value::object();
};

/// Everything that the rest of the program needs to know about a model.
struct Resolved {
  json::Value
      /// The resolved `model` section, which is written to config.json and compared on resume.
      description;
  Trunk trunk;  ///< all blocks except the objective
  /// Options that the family passes to its objective, as far as they differ from the objective's
  /// defaults.
  json::Value objective_options = json::Value::object();
  nn::Model model;  ///< the trunk and the objective
  /// The objective's name and its options. If a family's options determine what the model is
  /// trained for, the family sets it, instead of using Family::objective.
  ObjectiveChoice objective;
  std::int64_t vocab_size = 0;
  std::int64_t tokenizer_size = 0;
  std::int64_t max_positions = 0;
  std::int64_t num_parameters = 0;
  /// Parameters that one token does not use, such as those of experts that it is not sent to.
  /// Memory follows from num_parameters, arithmetic from active_parameters().
  std::int64_t inactive_parameters = 0;
  [[nodiscard]] std::int64_t active_parameters() const {
    return num_parameters - inactive_parameters;
  }
  std::int64_t num_layers = 0, hidden_size = 0, num_heads = 0, num_kv_heads = 0;
  bool tied_head = false;  ///< the head uses the token table as its weight
  /// For each key of the section `model` that was not given, the source of its value: "preset
  /// nano".
  std::map<std::string, std::string> derivations;
};

/// Fills elements [begin, end) (row-major, global) of the named parameter from files, as fp32.
using WeightSource =
    std::function<void(const ParamInfo& info, std::int64_t begin, std::int64_t end, float* out)>;

/// A key that may be given together with `model.from` and then overrides the source's value.
struct Adjustable {
  std::string key;
  std::vector<std::string> resets = {};  ///< keys whose values in the source it also replaces
};

struct Family {
  /// Creates default options.
  std::function<std::unique_ptr<FamilyOptions>()> options;
  std::vector<Preset> presets;
  std::vector<Adjustable> adjustable;
  /// Converts options of this family, `tokenizer_size` and `sequence_length` to a trunk and the
  /// facts of the model with a language-model head; models::resolve() adds the objective. Pure:
  /// never opens `model.from` (see merge_options). The description omits preset and from. Errors
  /// that involve several keys are added to `problems`.
  std::function<Resolved(const FamilyOptions& options,
                         std::int64_t tokenizer_size,
                         std::optional<std::int64_t> sequence_length,
                         config::Problems& problems,
                         const config::Origins& origins)>
      resolve;
  /// Reads Hugging Face's config.json: every key that changes what the model computes is honoured
  /// or refused by name; keys of other tasks or libraries are ignored. Absent keys have Hugging
  /// Face's defaults. Throws Error{Format} and Error{Unsupported}.
  std::function<std::unique_ptr<FamilyOptions>(const json::Value& hf_config)> from_hf;
  /// Writes a config.json from resolved options, in which every size is given. Throws
  /// Error{Unsupported} for values that Hugging Face's architecture has no key for.
  std::function<json::Value(const FamilyOptions& options)> to_hf;
  /// Hugging Face's names and layouts.
  WeightMap weight_map;
  /// True if a configuration without `model.family` uses this family.
  bool is_default = false;
  /// The default objective.
  std::string objective = "causal_lm";
  /// The model_types of files that contain such a model as their text part: their `text_config` is
  /// its config.json.
  std::vector<std::string> text_of = {};
};

/// Declares a family with functions of its own options type.
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
/// The family of a configuration without `model.family`.
const std::string& default_family();
/// The name of the family for a config.json of a Hugging Face folder, or for its text_config
/// (Family::text_of). Throws Error{Unsupported} with the nearest implemented family.
std::string family_of_hf(const json::Value& hf_config);
/// The options that a config.json of a Hugging Face folder describes. Throws the errors of
/// Family::from_hf.
ModelOptions options_from_hf(const json::Value& hf_config);
/// Family::resolve of the options' family, completed with the objective. Throws Error{Config} for
/// an unknown objective, for options that it lacks, and for a trunk that it cannot complete.
Resolved resolve(const ModelOptions& options,
                 std::int64_t tokenizer_size,
                 std::optional<std::int64_t> sequence_length,
                 config::Problems& problems,
                 const config::Origins& origins,
                 const ObjectiveChoice& objective = {});
/// Registers a family: TESSERA_MODEL("name", FamilyOf<Options>{...}).
#define TESSERA_MODEL(name, ...)                     \
  static const bool TESSERA_UNIQUE(tessera_model_) = \
      ::tessera::models::families().add(name, (__VA_ARGS__).family())

}  // namespace tessera::models

// SPDX-License-Identifier: Apache-2.0
// The section `adapter` of a configuration: which layers get a low-rank adapter of which kind. The
// rules are those of PEFT, so an adapter_config.json has the same meaning.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/config/fields.h"
#include "tessera/config/json.h"

namespace tessera::models {

/// The biases that are trained in addition to an adapter: none, all biases of the model, or those
/// of adapted layers.
enum class AdapterBias : std::uint8_t { None, All, LoraOnly };
inline constexpr auto kAdapterBiases = std::to_array<config::Named<AdapterBias>>(
    {{AdapterBias::None, "none"}, {AdapterBias::All, "all"}, {AdapterBias::LoraOnly, "lora_only"}});

/// Storage type of the base's matrices: the run's type, NF4, or int8 with a scale for each row.
enum class QuantizedBase : std::uint8_t { None, Nf4, Int8 };
inline constexpr auto kQuantizedBases = std::to_array<config::Named<QuantizedBase>>(
    {{QuantizedBase::None, "none"}, {QuantizedBase::Nf4, "nf4"}, {QuantizedBase::Int8, "int8"}});

struct AdapterOptions {
  std::string type;  ///< "lora", "rslora" or "dora"; empty: no adapter
  std::int64_t r = 8;
  double alpha = 8, dropout = 0;
  json::Value targets;  ///< "all-linear", a regular expression, or a list of names
  json::Value exclude;
  std::vector<std::string> target_parameters;
  json::Value rank_pattern, alpha_pattern;  ///< objects: regular expression -> number
  json::Value layers;                       ///< a number or a list of numbers
  std::vector<std::string> layers_pattern;
  std::vector<std::string> modules_to_save;
  AdapterBias bias = AdapterBias::None;
  bool rank_stabilized = false;
  std::optional<double> lr_ratio;
  std::string from;  ///< PEFT folder with the adapter's initial values
  QuantizedBase quantize_base = QuantizedBase::None;
  bool double_quantization = true;  ///< for nf4: stores its scales in eight bits too
  void describe(config::Fields& fields);

  [[nodiscard]] bool enabled() const { return !type.empty(); }
  [[nodiscard]] bool has_magnitude() const { return type == "dora"; }
  /// The factor of B A x: alpha / r, or alpha / sqrt(r), with which the rank does not change the
  /// size of the update. Source: Kalajdzievski 2023, "A rank stabilization scaling factor for
  /// fine-tuning with LoRA".
  [[nodiscard]] double scale(std::int64_t rank, double own_alpha) const;
};

/// True if `written` matches a module's full name, such as "model.layers.0.mlp.up_proj": it is
/// equal to the name or to a suffix after one of its dots.
bool means_module(std::string_view written, std::string_view module);

/// Decides which modules the options select. Regular expressions have a step limit.
class AdapterRules {
 public:
  /// Throws Error{Config} for values of the wrong type, unknown adapter types, ranks below 1 and
  /// expressions that do not compile.
  explicit AdapterRules(const AdapterOptions& options);
  /// True if the module is adapted. `everything`: the module is one of those that "all-linear"
  /// selects.
  [[nodiscard]] bool targets(const std::string& module, bool everything) const;
  /// True if target_parameters means the stacked parameter of this name.
  [[nodiscard]] bool targets_parameter(const std::string& name) const;
  [[nodiscard]] std::int64_t rank(const std::string& module) const;
  [[nodiscard]] double alpha(const std::string& module) const;
  /// The names, patterns and layer numbers that fit none of the adapted modules, each with its key:
  /// `alpha_pattern "w_query"`.
  [[nodiscard]] std::vector<std::string> unused(const std::vector<std::string>& adapted) const;
  /// The names of target_parameters that mean none of `parameters`.
  [[nodiscard]] std::vector<std::string> unused_parameters(
      const std::vector<std::string>& parameters) const;

 private:
  using Names = std::vector<std::string>;
  /// Numbers by regular expression, in the order of the configuration.
  using Numbers = std::vector<std::pair<std::string, double>>;
  [[nodiscard]] bool in_layers(const std::string& module) const;

  const AdapterOptions& options_;
  bool all_linear_ = false;
  std::string expression_, excluded_expression_;  ///< empty: the targets are a list of names
  Names names_, excluded_names_;
  std::vector<std::int64_t> layers_;
  bool by_layer_ = false;
  Numbers ranks_, alphas_;
};

}  // namespace tessera::models

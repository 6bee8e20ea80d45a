// SPDX-License-Identifier: Apache-2.0
// The section `model` of a configuration: the name of a family, and the options that this family
// declares.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/config/fields.h"

namespace tessera::models {

/// Base of a family's options: the keys that all families share. A family derives its own struct,
/// adds its keys, and describes all of them in describe(), between `preset` and `from`.
struct FamilyOptions {
  std::optional<std::string> preset;
  std::optional<std::int64_t> num_layers, hidden_size, num_heads, num_kv_heads, vocab_size,
      max_positions, ffn_hidden_size;
  double dropout = 0.0;
  bool tie_embeddings = true;
  double init_std = 0.02;
  double label_smoothing = 0.0;
  std::optional<std::string> from;
  bool new_weights = false;  ///< `from` gives the shape and the tokenizer alone

  FamilyOptions() = default;
  FamilyOptions(const FamilyOptions&) = default;
  FamilyOptions(FamilyOptions&&) = default;
  FamilyOptions& operator=(const FamilyOptions&) = default;
  FamilyOptions& operator=(FamilyOptions&&) = default;
  virtual ~FamilyOptions() = default;
  [[nodiscard]] virtual std::unique_ptr<FamilyOptions> clone() const = 0;
  virtual void describe(config::Fields& fields) = 0;

 protected:
  /// Documentation texts of the common keys that differ between families.
  struct SizeTexts {
    std::vector<std::string> presets;
    std::string preset_default;     ///< "nano if no size is given"
    std::string positions_default;  ///< the default of max_positions
    std::string ffn_default;        ///< "mlp_ratio x hidden_size"
  };
  /// Describes `preset` and the sizes.
  void describe_sizes(config::Fields& fields, const SizeTexts& texts);
  void describe_dropout(config::Fields& fields, std::string text);
  /// Describes `classifier_dropout`; `otherwise`: the probability if it is not given.
  void describe_classifier_dropout(config::Fields& fields,
                                   std::optional<double>& probability,
                                   std::string otherwise);
  void describe_tie(config::Fields& fields);
  void describe_init(config::Fields& fields, std::string text);
  void describe_label_smoothing(config::Fields& fields);
  /// Describes `from` and `new_weights`.
  void describe_from(config::Fields& fields);
};

/// Hugging Face's dropout probability before the output layer of a decoder that classifies tokens,
/// if its config.json gives none.
inline constexpr double kClassifierDropout = 0.1;

/// Largest dropout probability.
inline constexpr double kMaxDropout = 0.999;

/// A family's name and its options, as a value type. Reading `family` replaces the options by that
/// family's defaults; reading `preset` sets the preset's values of the following keys, which may
/// then be read themselves.
class ModelOptions {
 public:
  ModelOptions();  ///< defaults of the default family
  explicit ModelOptions(std::string_view family);
  ModelOptions(std::string family, std::unique_ptr<FamilyOptions> options);
  ModelOptions(const ModelOptions& other);
  ModelOptions(ModelOptions&&) noexcept = default;
  ModelOptions& operator=(const ModelOptions& other);
  ModelOptions& operator=(ModelOptions&&) noexcept = default;
  ~ModelOptions() = default;

  [[nodiscard]] const std::string& family() const { return family_; }
  FamilyOptions* operator->() { return options_.get(); }
  const FamilyOptions* operator->() const { return options_.get(); }
  FamilyOptions& operator*() { return *options_; }
  const FamilyOptions& operator*() const { return *options_; }
  /// Selects a preset of the family and clears the given sizes and any other preset.
  void choose_preset(std::string_view name);
  /// True if the key has a value, by default or given.
  [[nodiscard]] bool has(std::string_view key) const;
  void describe(config::Fields& fields);

 private:
  std::string family_;
  std::unique_ptr<FamilyOptions> options_;
};

/// The options if `model.from` names a model that `source` describes: the source's values, and the
/// user's values of adjustable keys (Family::adjustable). Other keys that contradict the source, or
/// that its family lacks, are added to `problems`.
ModelOptions merge_options(const ModelOptions& given,
                           ModelOptions source,
                           config::Problems& problems,
                           const config::Origins& origins);

}  // namespace tessera::models

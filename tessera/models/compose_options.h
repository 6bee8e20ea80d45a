// SPDX-License-Identifier: Apache-2.0
// The keys of a model that a configuration composes from parts (models/composed.h).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/models/composed.h"
#include "tessera/models/family.h"
#include "tessera/models/sizes.h"

namespace tessera::models {

const std::vector<Preset>& composed_presets();
/// The summands of an embedding that are built.
const std::vector<std::string>& composed_embeddings();

/// Names of activation functions in TencentPretrain's configuration, and here.
inline constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kActivations = {
    {{"gelu", "gelu"},
     {"gelu_fast", "gelu_tanh"},
     {"relu", "relu"},
     {"silu", "silu"},
     {"linear", ""}}};

struct ComposeOptions final : FamilyOptions {
  std::vector<std::string> embedding = {"word", "pos"};
  std::vector<std::string> target = {"lm"};
  std::string encoder = "transformer", decoder = "none";
  std::optional<bool> embedding_norm;
  std::int64_t position_offset = 0;
  std::optional<std::int64_t> image_size, patch_size, num_channels;  ///< with patches alone
  bool pooler = true, lm_bias = false;
  std::string mask = "causal", norm_position = "pre", norm = "layer_norm";
  double norm_eps = 1e-6;
  std::string feed_forward = "dense", position = "embedding";
  std::string activation = "gelu";
  bool bias = true, scale_attention = true, scale_output = false;
  bool qk_norm = false, shared_positions = false;
  std::optional<std::int64_t> head_dim, num_decoder_layers;
  std::int64_t position_buckets = 32, position_max_distance = 128;
  double rope_theta = 10000.0, rotary_fraction = 1.0;
  std::int64_t start_token = 0, pad_token = 0;

  [[nodiscard]] std::unique_ptr<FamilyOptions> clone() const override {
    return std::make_unique<ComposeOptions>(*this);
  }
  void describe(config::Fields& fields) override;
  /// Returns whether all summands of the embedding are known. A problem says of those that
  /// TencentPretrain has that they are not built; "speech" is the only problem of its embedding.
  [[nodiscard]] bool check_embedding(Checks& checks) const;
  /// Sets the forms that TencentPretrain's models do not have.
  void set_other_forms(ComposedShape& shape, Checks& checks) const;
  /// The channels of a head that rotary positions turn; 0: all.
  [[nodiscard]] std::int64_t rotary_channels(std::int64_t head_dim, Checks& checks) const;
  /// A description without keys at the values that a model had before there were these keys.
  [[nodiscard]] json::Value described(json::Value description) const;
  /// Throws Error{Unsupported} for forms that TencentPretrain's configuration has no key for.
  void refuse_to_publish() const;

 private:
  void describe_parts(config::Fields& fields);
  void describe_images(config::Fields& fields);
  void describe_layers(config::Fields& fields);
  void describe_decoder(config::Fields& fields);
};

}  // namespace tessera::models

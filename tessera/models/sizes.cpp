// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/sizes.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/text.h"

namespace tessera::models {
namespace {

constexpr std::int64_t kDefaultPositions = 1024;
constexpr std::int64_t kVocabMultiple = 64;  // so that rows of the head fill vector registers

std::string divisors(std::int64_t number) {
  std::vector<std::string> out;
  for (std::int64_t d = 1; d <= number && d <= 1024; ++d) {
    if (number % d == 0) out.push_back(std::to_string(d));
  }
  return text::join(out, ", ");
}

}  // namespace

Preset nano(std::string name,
            std::int64_t num_layers,
            std::int64_t hidden_size,
            std::int64_t num_heads,
            std::int64_t num_kv_heads,
            std::int64_t ffn_hidden_size,
            std::int64_t head_dim,
            std::vector<PresetValue> values) {
  return {.name = std::move(name),
          .num_layers = num_layers,
          .hidden_size = hidden_size,
          .num_heads = num_heads,
          .num_kv_heads = num_kv_heads,
          .ffn_hidden_size = ffn_hidden_size,
          .values = std::move(values),
          .head_dim = head_dim,
          .bytes = true};
}

std::vector<std::string> names_of(const std::vector<Preset>& presets) {
  std::vector<std::string> names;
  for (const Preset& preset : presets)
    names.push_back(preset.name);
  return names;
}

void Checks::require(bool holds, const std::string& path, std::string what, std::string fix) {
  if (!holds) problems_.add(origins_.place(path), path, std::move(what), std::move(fix));
}

const Preset* find_preset(const FamilyOptions& options,
                          const std::vector<Preset>& presets,
                          const std::string& otherwise,
                          Checks& checks) {
  const bool sized = options.num_layers || options.hidden_size || options.num_heads;
  if (!options.preset && sized) return nullptr;
  const std::string wanted = options.preset.value_or(otherwise);
  for (const Preset& preset : presets) {
    if (wanted == preset.name) return &preset;
  }
  const auto names = names_of(presets);
  checks.require(false,
                 "model.preset",
                 fmt::format("unknown preset \"{}\"", wanted),
                 text::suggestion(wanted, names));
  return &presets.front();
}

void set_layers(const FamilyOptions& options, const Preset* preset, Sizes& sizes, Checks& checks) {
  const auto pick = [&](const std::optional<std::int64_t>& given,
                        std::int64_t Preset::*of_preset,
                        const char* key) {
    checks.require(given || preset || checks.concern(fmt::format("model.{}", key)),
                   fmt::format("model.{}", key),
                   fmt::format("model.{} is missing", key),
                   "give num_layers, hidden_size and num_heads, or a preset that they override");
    return given ? *given : (preset ? preset->*of_preset : 1);
  };
  sizes.num_layers = pick(options.num_layers, &Preset::num_layers, "num_layers");
  sizes.hidden_size = pick(options.hidden_size, &Preset::hidden_size, "hidden_size");
  sizes.num_heads = pick(options.num_heads, &Preset::num_heads, "num_heads");
  const std::int64_t of_preset = preset ? preset->num_kv_heads : 0;
  sizes.num_kv_heads = options.num_kv_heads.value_or(
      of_preset > 0 && !options.num_heads ? of_preset : sizes.num_heads);
}

void check_heads(const Sizes& sizes, Checks& checks) {
  const std::int64_t hidden = sizes.hidden_size, heads = sizes.num_heads;
  checks.require(heads > 0 && hidden % heads == 0,
                 "model.num_heads",
                 fmt::format("num_heads {} does not divide hidden_size {} ({} x {} + {})",
                             heads,
                             hidden,
                             heads,
                             hidden / std::max<std::int64_t>(heads, 1),
                             hidden % std::max<std::int64_t>(heads, 1)),
                 fmt::format("choose num_heads from {}", divisors(hidden)));
  checks.require(sizes.num_kv_heads > 0 && heads % sizes.num_kv_heads == 0,
                 "model.num_kv_heads",
                 fmt::format("num_kv_heads {} does not divide num_heads {}: each key/value head "
                             "must serve the same number of heads",
                             sizes.num_kv_heads,
                             heads),
                 fmt::format("choose num_kv_heads from {}", divisors(heads)));
}

void set_positions(const FamilyOptions& options,
                   const Preset* preset,
                   std::optional<std::int64_t> sequence_length,
                   Sizes& sizes,
                   Checks& checks) {
  const std::int64_t of_preset = options.preset && preset ? preset->max_positions : 0;
  sizes.max_positions = options.max_positions.value_or(
      of_preset > 0 ? of_preset : sequence_length.value_or(kDefaultPositions));
  checks.require(
      !sequence_length || *sequence_length <= sizes.max_positions,
      "data.sequence_length",
      fmt::format("sequence_length {} exceeds the number of positions of the model ({})",
                  sequence_length.value_or(0),
                  sizes.max_positions),
      options.from
          // A folder's number of positions cannot be changed here.
          ? fmt::format("set data.sequence_length to {} or less: {} has no more positions",
                        sizes.max_positions,
                        *options.from)
          : fmt::format("data.sequence_length at most {}, or model.max_positions at "
                        "least {}",
                        sizes.max_positions,
                        sequence_length.value_or(0)));
}

void set_vocabulary(const FamilyOptions& options,
                    std::int64_t tokenizer_size,
                    Sizes& sizes,
                    Checks& checks,
                    const Preset* preset) {
  const std::int64_t of_preset = options.preset && preset != nullptr ? preset->vocab_size : 0;
  const std::int64_t rounded =
      (tokenizer_size + kVocabMultiple - 1) / kVocabMultiple * kVocabMultiple;
  sizes.tokenizer_size = tokenizer_size;
  sizes.vocab_size = options.vocab_size.value_or(
      of_preset > 0 && of_preset >= tokenizer_size ? of_preset : rounded);
  checks.require(
      sizes.vocab_size >= std::max<std::int64_t>(tokenizer_size, 1),
      "model.vocab_size",
      fmt::format(
          "vocab_size {} is smaller than the tokenizer's {}", sizes.vocab_size, tokenizer_size),
      fmt::format("remove it, or set at least {} ({} is faster)", tokenizer_size, rounded));
}

std::map<std::string, std::string> derivations_of(const FamilyOptions& options,
                                                  const std::string& otherwise,
                                                  const Sizes& sizes) {
  const std::string preset = fmt::format("preset {}", options.preset.value_or(otherwise));
  return {{"num_layers", preset},
          {"hidden_size", preset},
          {"num_heads", preset},
          {"vocab_size", fmt::format("the tokenizer's {}, rounded up", sizes.tokenizer_size)},
          {"max_positions", "data.sequence_length, the preset, or 1024"}};
}

void make_possible(Sizes& sizes) {
  sizes.ffn_hidden_size = std::max<std::int64_t>(sizes.ffn_hidden_size, 1);
  if (sizes.num_heads > sizes.hidden_size) sizes.num_heads = sizes.num_kv_heads = sizes.hidden_size;
}

}  // namespace tessera::models

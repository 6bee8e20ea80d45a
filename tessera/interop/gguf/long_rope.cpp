// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/gguf/long_rope.h"

#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/interop/foreign.h"
#include "tessera/interop/gguf/reader.h"

namespace tessera::interop {
namespace {

std::vector<float> factors_of(const json::Value& rope, const char* key) {
  std::vector<float> out;
  bool sound = true;
  const json::Value* const all = rope.find(key);
  if (all != nullptr && all->is_array()) {
    for (const json::Value& one : all->items()) {
      out.push_back(one.is_number() ? static_cast<float>(one.as_double()) : 0.0F);
      sound = sound && out.back() > 0;
    }
  }
  TESSERA_REQUIRE(sound && !out.empty(),
                  Format,
                  fmt::format("config.json says no {} of longrope", key),
                  "mend config.json, or fetch it again");
  return out;
}

std::vector<float> factors_in(const GgufFile& file, const char* name, std::int64_t pairs) {
  const GgufTensor* const stored = file.tensor(name);
  if (stored == nullptr || stored->shape != std::vector<std::int64_t>{pairs})
    file.refuse(fmt::format("has no {} factors of rotary frequencies in {}", pairs, name));
  std::vector<float> out(static_cast<std::size_t>(pairs));
  decode_blocks(stored->type, stored->data.data(), 0, pairs, out.data());
  for (const float factor : out) {
    if (!std::isfinite(factor) || factor <= 0)
      file.refuse(fmt::format("has the factor {} in {}", factor, name));
  }
  return out;
}

/// Hugging Face's default for the factor of sines and cosines.
double usual_scale(double factor, double original) {
  return factor > 1 && original > 1 ? std::sqrt(1 + std::log(factor) / std::log(original)) : 1;
}

json::Value shortest(float number) {
  return json::parse_strict(fmt::format("{}", number), "a number of fp32");
}
json::Value shortest(const std::vector<float>& numbers) {
  json::Value out = json::Value::array();
  for (const float number : numbers)
    out.push_back(shortest(number));
  return out;
}

}  // namespace

LongRope long_rope_of(const json::Value& rope, bool mscale) {
  const double original = number_at(rope, "original_max_position_embeddings").value_or(0);
  LongRope out{.original_length = static_cast<std::int64_t>(original),
               .long_factors = factors_of(rope, "long_factor"),
               .short_factors = factors_of(rope, "short_factor")};
  if (mscale) {
    out.scale = number_at(rope, "short_mscale").value_or(1);
    TESSERA_REQUIRE(out.scale == number_at(rope, "long_mscale").value_or(1),
                    Unsupported,
                    "config.json says another short_mscale than long_mscale, which GGUF has no "
                    "word for",
                    "convert it to a Hugging Face folder instead");
    return out;
  }
  const double usual = usual_scale(number_at(rope, "factor").value_or(1), original);
  out.scale = number_at(rope, "attention_factor").value_or(usual);
  return out;
}

LongRope long_rope_in(const GgufFile& file, std::int64_t pairs) {
  const std::string at = std::string(file.text("general.architecture").value_or("")) +
                         ".rope.scaling.",
                    length = at + "original_context_length";
  const auto original = file.integer(length);
  if (!original || *original < 1) file.refuse(fmt::format("has no {}", length));
  const double scale = file.number(at + "attn_factor").value_or(1);
  if (!(scale > 0) || !std::isfinite(scale))
    file.refuse(fmt::format("{}attn_factor is {}", at, scale));
  return {.original_length = *original,
          .scale = scale,
          .long_factors = factors_in(file, kLongFactors, pairs),
          .short_factors = factors_in(file, kShortFactors, pairs)};
}

json::Value config_of(const LongRope& rope, bool mscale, std::int64_t positions) {
  json::Value out = json::Value::object(
      {{"rope_type", json::Value::string("longrope")},
       {"original_max_position_embeddings", json::Value::integer(rope.original_length)},
       {"short_factor", shortest(rope.short_factors)},
       {"long_factor", shortest(rope.long_factors)}});
  const json::Value scale = shortest(static_cast<float>(rope.scale));
  if (mscale) {
    out["short_mscale"] = out["long_mscale"] = scale;
    return out;
  }
  const auto original = static_cast<double>(rope.original_length);
  const double usual = usual_scale(static_cast<double>(positions) / original, original);
  if (static_cast<float>(usual) != static_cast<float>(rope.scale)) out["attention_factor"] = scale;
  return out;
}

}  // namespace tessera::interop

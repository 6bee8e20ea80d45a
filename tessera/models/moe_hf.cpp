// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/moe_hf.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"

namespace tessera::models {

void use_pooled_balance(MoeOptions& moe, double coefficient) {
  moe.losses.balance = coefficient;
  moe.losses.pooled_layers = true;
  moe.losses.per_choice = false;
}

void read_balance(const HfConfig& keys, MoeOptions& out, double absent, const char* key) {
  const double coefficient = keys.number(key, absent, 0, 1e3);
  use_pooled_balance(out, keys.flag("output_router_logits", false) ? coefficient : 0.0);
}

void write_balance(const MoeOptions& moe, json::Value& hf_config, const char* key) {
  hf_config["output_router_logits"] = json::Value::boolean(moe.losses.balance > 0);
  hf_config[key] = real_to_hf(moe.losses.balance);
}

void refuse_jitter(const HfConfig& keys, const char* key) {
  keys.refuse(key, keys.number(key, 0.0, 0, 1) == 0.0, "0, because noise of routers is not built");
}

void read_sparse_step(const HfConfig& keys, DecoderOptions& out) {
  const std::int64_t step = keys.count("decoder_sparse_step", 1, 1e4),
                     layers = out.num_layers.value();
  out.moe.every = step;
  if (keys.empty("mlp_only_layers")) {
    keys.refuse("decoder_sparse_step", step <= layers, "at most the number of layers");
    return;
  }
  const json::Value& list = *keys.find("mlp_only_layers");
  keys.refuse("mlp_only_layers", list.is_array(), "a list of numbers of layers");
  std::set<std::int64_t> dense;
  for (const json::Value& one : list.items()) {
    keys.refuse("mlp_only_layers", one.as_integer().has_value(), "a list of numbers of layers");
    dense.insert(*one.as_integer());
  }
  for (std::int64_t i = 0; i < layers; ++i) {
    if ((i + 1) % step == 0 && !dense.contains(i)) out.moe.layers.push_back(static_cast<double>(i));
  }
  keys.refuse("mlp_only_layers", !out.moe.layers.empty(), "a list that leaves a layer its experts");
}

void write_sparse_step(const DecoderOptions& options, json::Value& hf_config) {
  const MoeOptions& moe = options.moe;
  const bool by_step = moe.layers.empty() && moe.first_dense == 0;
  json::Value dense = json::Value::array();
  for (std::int64_t i = 0; !by_step && i < options.num_layers.value(); ++i) {
    if (!moe.sparse(i)) dense.push_back(json::Value::integer(i));
  }
  hf_config["decoder_sparse_step"] = json::Value::integer(by_step ? moe.every : 1);
  hf_config["mlp_only_layers"] = std::move(dense);
}

namespace {

/// Names the first key of `model.moe` that transformers has no key for; empty: none.
std::string unknown_key(const MoeOptions& moe, const MoeOptions::Router& known, bool shared) {
  const MoeOptions::Router& router = moe.router;
  if (moe.capacity > 0) return "capacity";
  if (!shared && moe.shared_width(1) > 0) return "shared";
  if (moe.losses.z > 0) return "losses.z";
  if (moe.losses.sequence_balance > 0) return "losses.sequence_balance";
  if (router.score != known.score) return "router.score";
  if (router.correction != known.correction) return "router.correction";
  if (router.bias != known.bias) return "router.bias";
  if (router.weighs_inputs != known.weighs_inputs) return "router.weighs_inputs";
  return {};
}

}  // namespace

void write_experts(const DecoderOptions& options,
                   const char* architecture,
                   const MoeOptions::Router& known,
                   bool shared,
                   const char* count_key,
                   json::Value& hf_config) {
  const MoeOptions& moe = options.moe;
  const std::string key = unknown_key(moe, known, shared);
  TESSERA_REQUIRE(
      key.empty(),
      Unsupported,
      fmt::format("Hugging Face's {} has no key for this model.moe.{}", architecture, key),
      "leave it at the family's default for a model that is exported");
  TESSERA_REQUIRE(
      moe.num_experts > 0,
      Unsupported,
      fmt::format("Hugging Face's {} has experts, and model.moe.num_experts is 0", architecture),
      "choose a family without experts in model.family");
  hf_config[count_key] = json::Value::integer(moe.num_experts);
  hf_config["num_experts_per_tok"] = json::Value::integer(moe.top_k);
}

void require_plain_experts(const DecoderOptions& options,
                           const char* architecture,
                           bool normalized) {
  const MoeOptions& moe = options.moe;
  TESSERA_REQUIRE(
      expert_width(options) == options.ffn_hidden_size && moe.every == 1 && moe.first_dense == 0 &&
          moe.layers.empty(),
      Unsupported,
      fmt::format("Hugging Face's {} has experts of width ffn_hidden_size in every layer",
                  architecture),
      "choose another family in model.family for other experts");
  TESSERA_REQUIRE(moe.router.normalize == normalized,
                  Unsupported,
                  fmt::format("Hugging Face's {} {} the weights of experts",
                              architecture,
                              normalized ? "normalizes" : "does not normalize"),
                  "leave model.moe.router.normalize at its default");
}

std::vector<Adjustable> adjustable_with_experts() {
  std::vector<Adjustable> out;
  for (const char* const key : {"attention_dropout",
                                "classifier_dropout",
                                "init_std",
                                "label_smoothing",
                                "rope_length",
                                "moe.capacity",
                                "moe.min_capacity",
                                "moe.drop",
                                "moe.normalize_after_drop",
                                "moe.router.bias_update",
                                "moe.losses.balance",
                                "moe.losses.sequence_balance",
                                "moe.losses.z",
                                "moe.losses.pooled_layers",
                                "moe.losses.per_choice"})
    out.push_back({key});
  return out;
}

std::int64_t expert_width(const DecoderOptions& options) {
  return options.moe.ffn_hidden_size.value_or(options.ffn_hidden_size.value());
}

}  // namespace tessera::models

// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/moe_options.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace tessera::models {

void MoeOptions::Router::describe(config::Fields& fields) {
  fields.field(
      "score",
      score,
      {.text = "Function of the router's logits: softmax over all experts, sigmoid of each, "
               "or PhiMoE's sparse mixer.",
       .choices = {"softmax", "sigmoid", "sparse_mixer"}});
  fields.field("normalize",
               normalize,
               {.text = "Whether the weights of a token's experts are divided by their sum."});
  fields.field(
      "normalize_eps", normalize_eps, {.text = "Value added to that sum.", .min = 0, .max = 1});
  fields.field(
      "scale",
      scale,
      {.text = "Factor of the weights of experts.", .min = 0, .max = 1e6, .above_min = true});
  fields.field("groups",
               groups,
               {.text = "Number of groups of neighbouring experts; must divide num_experts.",
                .min = 1,
                .max = 1e6});
  fields.field("top_groups",
               top_groups,
               {.text = "Number of groups whose experts a token may use.", .min = 1, .max = 1e6});
  fields.field("group_rank",
               group_rank,
               {.text = "Rank of a group: its best score, or the sum of its two best scores.",
                .choices = {"best", "best_two"}});
  fields.field("choice",
               choice,
               {.text = "Choice of experts in training: those of the best scores, or of the best "
                        "ones after Sinkhorn's scaling, which spreads the tokens of a micro-batch "
                        "over the experts without a loss.",
                .choices = {"best", "sinkhorn"}});
  fields.field(
      "mixer_eps", mixer_eps, {.text = "Threshold of the sparse mixer.", .min = 0, .max = 1});
  fields.field("bias", bias, {.text = "Whether the router's logits have a bias."});
  fields.field(
      "correction",
      correction,
      {.text = "Whether a value for each expert, which gradients do not train, is added to "
               "its score for the choice."});
  fields.field("bias_update",
               bias_update,
               {.text = "Amount by which the correction of each expert changes after a step: up if "
                        "it had fewer tokens than the mean, down if it had more; 0: never.",
                .min = 0,
                .max = 1});
  fields.field("weighs_inputs",
               weighs_inputs,
               {.text = "Whether the weights multiply the inputs of experts, not their outputs."});
}

void MoeOptions::Losses::describe(config::Fields& fields) {
  fields.field(
      "balance",
      balance,
      {.text = "Coefficient of the balance loss over the tokens of each micro-batch; 0: none.",
       .min = 0,
       .max = 1e3});
  fields.field("sequence_balance",
               sequence_balance,
               {.text = "Coefficient of the balance loss over the tokens of each sample; 0: none.",
                .min = 0,
                .max = 1e3});
  fields.field("z",
               z,
               {.text = "Coefficient of the squared logsumexp of the router's logits; 0: none.",
                .min = 0,
                .max = 1e3});
  fields.field("pooled_layers",
               pooled_layers,
               {.text = "Whether `balance` covers the tokens of all layers together, as in "
                        "transformers."});
  fields.field("per_choice",
               per_choice,
               {.text = "Whether perfect balance gives 1 (DeepSpeed, Megatron-LM) instead of top_k "
                        "(transformers)."});
}

void MoeOptions::describe(config::Fields& fields) {
  fields.field("num_experts",
               num_experts,
               {.text = "Number of experts of a sparse layer; 0: all layers have an MLP.",
                .min = 0,
                .max = 1e5});
  fields.field(
      "top_k", top_k, {.text = "Number of experts that a token uses.", .min = 1, .max = 1e5});
  fields.field("first_dense",
               first_dense,
               {.text = "Number of first layers that keep an MLP.", .min = 0, .max = 1e4});
  fields.field("every",
               every,
               {.text = "Every Nth layer is sparse, beginning with layer N - 1 (from 0).",
                .min = 1,
                .max = 1e4});
  fields.field("layers",
               layers,
               {.text = "Numbers of the sparse layers, from 0; replaces `first_dense` and `every`.",
                .min = 0,
                .max = 1e4});
  fields.field("ffn_hidden_size",
               ffn_hidden_size,
               {.text = "Hidden width of an expert.",
                .min = 1,
                .max = 1e7,
                .default_text = "ffn_hidden_size of the model"});
  fields.field(
      "shared",
      shared,
      {.text = "Number of experts of this width that every token uses.", .min = 0, .max = 1e4});
  fields.field("shared_ffn_hidden_size",
               shared_ffn_hidden_size,
               {.text = "Hidden width of the experts that every token uses, together.",
                .min = 1,
                .max = 1e7,
                .default_text = "shared x ffn_hidden_size"});
  fields.field("shared_gate",
               shared_gate,
               {.text = "Whether the sigmoid of a projection to one value multiplies the output of "
                        "the shared experts."});
  fields.field("capacity",
               capacity,
               {.text = "Capacity factor of an expert in training: it accepts factor x top_k x "
                        "tokens / num_experts of a micro-batch; 0: all tokens.",
                .min = 0,
                .max = 1e6});
  fields.field("min_capacity",
               min_capacity,
               {.text = "Smallest capacity of an expert.", .unit = "tokens", .min = 0, .max = 1e9});
  fields.field(
      "drop",
      drop,
      {.text = "Tokens that an expert keeps at its capacity: the first ones (position), first "
               "choices before second ones (choice), or those with the largest weights "
               "(probability).",
       .choices = {"position", "choice", "probability"}});
  fields.field(
      "normalize_after_drop",
      normalize_after_drop,
      {.text = "Whether weights are divided by the sum over the experts that kept the token "
               "(DeepSpeed) instead of over all chosen ones (Megatron-LM)."});
  fields.section("router", router, "Choice of experts");
  fields.section("losses", losses, "Terms of the loss that balance experts");
}

bool MoeOptions::sparse(std::int64_t layer) const {
  if (num_experts == 0) return false;
  if (!layers.empty())
    return std::find(layers.begin(), layers.end(), static_cast<double>(layer)) != layers.end();
  return layer >= first_dense && (layer + 1) % every == 0;
}

std::int64_t MoeOptions::shared_width(std::int64_t expert_width) const {
  return shared_ffn_hidden_size.value_or(shared * expert_width);
}

ExpertsSpec experts_of(const MoeOptions& options, const MoeModel& model) {
  const std::int64_t width = options.ffn_hidden_size.value_or(model.ffn_hidden_size);
  const Init init = Init::normal(model.init_std);
  const MoeOptions::Router& router = options.router;
  using ops::RouterScore;
  return {.hidden_size = model.hidden_size,
          .ffn_hidden_size = width,
          .num_experts = options.num_experts,
          .router = {.top_k = options.top_k,
                     .score = router.score == "sigmoid"        ? RouterScore::Sigmoid
                              : router.score == "sparse_mixer" ? RouterScore::SparseMixer
                                                               : RouterScore::Softmax,
                     .normalize = router.normalize,
                     .normalize_eps = router.normalize_eps,
                     .scale = router.scale,
                     .groups = router.groups,
                     .top_groups = router.top_groups,
                     .group_rank = router.group_rank == "best" ? ops::GroupRank::Best
                                                               : ops::GroupRank::BestTwo,
                     .choice = router.choice == "sinkhorn" ? ops::RouterChoice::Sinkhorn
                                                           : ops::RouterChoice::Best,
                     .mixer_eps = router.mixer_eps,
                     .bias = router.bias,
                     .correction = router.correction || router.bias_update > 0.0,
                     .correction_rate = router.bias_update,
                     .weighs_inputs = router.weighs_inputs},
          .bias = model.bias,
          .activation = {.name = model.activation, .gated = model.gated},
          .shared = {.ffn_hidden_size = options.shared_width(width),
                     .gate_name = options.shared_gate ? "mlp.shared_expert_gate" : ""},
          .balance = {.micro_batch = options.losses.balance,
                      .sequence = options.losses.sequence_balance,
                      .z = options.losses.z,
                      .pooled_layers = options.losses.pooled_layers,
                      .per_choice = options.losses.per_choice},
          .capacity = {.factor = options.capacity,
                       .minimum = options.min_capacity,
                       .drop = options.drop == "probability" ? ops::DropRule::Probability
                               : options.drop == "choice"    ? ops::DropRule::Choice
                                                             : ops::DropRule::Position,
                       .normalize_after = options.normalize_after_drop},
          .router_init = init,
          .input_init = init,
          .output_init = init};
}

namespace {

void check_layers(const MoeOptions& options, const MoeModel& model, Checks& checks) {
  for (const double layer : options.layers) {
    checks.require(
        layer == std::floor(layer) && layer < static_cast<double>(model.num_layers),
        "model.moe.layers",
        fmt::format("layers has {}, and the model has {} layers", layer, model.num_layers),
        fmt::format("give whole numbers from 0 to {}", model.num_layers - 1));
  }
  bool any = false;
  for (std::int64_t i = 0; i < model.num_layers; ++i)
    any = any || options.sparse(i);
  checks.require(any,
                 "model.moe.num_experts",
                 fmt::format("there are {} experts, and none of the {} layers is sparse",
                             options.num_experts,
                             model.num_layers),
                 "decrease model.moe.first_dense or model.moe.every, or give model.moe.layers");
}

void check_router(const MoeOptions& options, Checks& checks) {
  const MoeOptions::Router& router = options.router;
  const std::int64_t E = options.num_experts;
  const bool divides = router.groups > 0 && E % router.groups == 0;
  checks.require(divides,
                 "model.moe.router.groups",
                 fmt::format("{} groups do not divide {} experts", router.groups, E),
                 "choose a divisor of num_experts");
  checks.require(
      router.top_groups <= router.groups,
      "model.moe.router.top_groups",
      fmt::format("top_groups is {}, and there are {} groups", router.top_groups, router.groups),
      "choose top_groups up to groups");
  const std::int64_t open = divides ? E / router.groups * router.top_groups : E;
  checks.require(
      options.top_k <= open,
      "model.moe.top_k",
      fmt::format("a token uses {} experts, and may choose among {}", options.top_k, open),
      "decrease top_k, or increase num_experts or router.top_groups");
  const bool pairs =
      router.groups == 1 || router.group_rank != "best_two" || !divides || E / router.groups >= 2;
  checks.require(pairs,
                 "model.moe.router.group_rank",
                 "groups of one expert have no two best scores",
                 "choose \"best\", or fewer groups");
  checks.require(router.score != "sparse_mixer" || options.top_k == 2,
                 "model.moe.top_k",
                 fmt::format("the sparse mixer chooses 2 experts, and top_k is {}", options.top_k),
                 "set top_k to 2");
  const bool plain = router.groups == 1 && !router.correction && router.bias_update == 0.0 &&
                     router.score != "sparse_mixer";
  checks.require(router.choice != "sinkhorn" || plain,
                 "model.moe.router.choice",
                 "Sinkhorn's scaling chooses among all experts by their scores alone",
                 "remove router.groups, router.correction and router.bias_update, and use softmax "
                 "or sigmoid");
}

}  // namespace

void check_experts(const MoeOptions& options, const MoeModel& model, Checks& checks) {
  if (options.num_experts == 0) return;
  check_layers(options, model, checks);
  check_router(options, checks);
  checks.require(!options.shared_gate || options.shared_width(1) > 0,
                 "model.moe.shared_gate",
                 "shared_gate is true, and there are no shared experts",
                 "give model.moe.shared or model.moe.shared_ffn_hidden_size");
}

void leave_out_usual_experts(json::Value& description, std::int64_t num_experts) {
  if (num_experts == 0) {
    std::erase_if(description.members(), [](const auto& member) { return member.first == "moe"; });
    return;
  }
  json::Value* const moe = description.find("moe");
  json::Value* const router = moe != nullptr ? moe->find("router") : nullptr;
  if (router == nullptr) return;
  const MoeOptions::Router usual;
  std::erase_if(router->members(), [&](const auto& member) {
    return member.first == "choice" && member.second.is_string() &&
           member.second.as_string() == usual.choice;
  });
}

}  // namespace tessera::models

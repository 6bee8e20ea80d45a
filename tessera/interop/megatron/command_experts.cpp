// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/megatron/command_experts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::interop::megatron {
namespace {

using Setting = ForeignFlags::Setting;

// "2": every second layer, from the first; "([0]*1+[1]*3)" and "[0,1,1]": a mark for each layer.
void set_layers(Meaning& meaning) {
  const Setting* const layers = meaning.given("@expert_layers");
  if (layers == nullptr) return;
  const std::string word = meaning.text("@expert_layers");
  const double count = meaning.number("model.num_layers").value_or(0);
  std::vector<bool> sparse;
  if (word.find('[') == std::string::npos) {
    const json::Value every = json::parse(word, layers->flag);
    const std::int64_t step = every.is_number() ? every.as_integer().value_or(0) : 0;
    if (step < 1) {
      meaning.refuse(fmt::format("{} {}: expected a number or a list", layers->flag, word), "1");
      return;
    }
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(count); ++i)
      sparse.push_back(i % step == 0);
  } else {
    // Terms of the form [0,1]*N, added.
    std::string rest = word;
    std::erase_if(rest, [](char c) { return c == '(' || c == ')' || c == ' '; });
    for (const std::string& term : text::split(rest, '+')) {
      const std::size_t star = term.find('*');
      const json::Value marks = json::parse(term.substr(0, star), layers->flag);
      std::int64_t times = 1;
      if (star != std::string::npos)
        times = json::parse(term.substr(star + 1), layers->flag).as_integer().value_or(1);
      for (std::int64_t i = 0; i < times && sparse.size() < 10'000; ++i) {
        for (const json::Value& mark : marks.items())
          sparse.push_back(mark.as_double() != 0);
      }
    }
  }
  if (static_cast<double>(sparse.size()) != count) {
    meaning.refuse(fmt::format("{} {} names {} layers, and the model has {}",
                               layers->flag,
                               word,
                               sparse.size(),
                               count),
                   "give one mark for each layer");
    return;
  }
  json::Value numbers = json::Value::array();
  for (std::size_t i = 0; i < sparse.size(); ++i) {
    if (sparse[i]) numbers.push_back(json::Value::integer(static_cast<std::int64_t>(i)));
  }
  meaning.set("model.moe.layers", std::move(numbers), layers);
}

// The family of latent attention has corrections and a shared expert unless it is told otherwise.
bool is_latent(const Meaning& meaning) {
  return meaning.is_on("@latent");
}
void set_off(Meaning& meaning, const char* key) {
  meaning.set(key, json::Value::boolean(false));
}

// Sinkhorn's routing has scores of its own, and no loss that balances.
bool set_sinkhorn(Meaning& meaning) {
  const Setting* const type = meaning.find("@balancing");
  const std::vector<std::string> names = meaning.texts("@balancing");
  if (std::ranges::find(names, "sinkhorn") == names.end()) return false;
  const auto is_zero = [](const std::string& word) {
    return json::parse(word, "--moe-aux-loss-coeff").as_double() == 0.0;
  };
  if (names.size() > 1 || !std::ranges::all_of(meaning.texts("@balance"), is_zero)) {
    meaning.refuse(fmt::format("{} sinkhorn beside a loss that balances", type->flag),
                   "remove --moe-aux-loss-coeff and the other types");
  }
  for (const char* name : {"@expert_bias", "@router_groups"}) {
    if (const Setting* const other = meaning.given(name))
      meaning.refuse(fmt::format("{} with {} sinkhorn", other->flag, type->flag),
                     "remove one of the two");
  }
  const bool one = meaning.number("@top_k").value_or(2) == 1;
  meaning.set("model.moe.router.choice", json::Value::string("sinkhorn"), type);
  meaning.set("model.moe.router.score", json::Value::string(one ? "sigmoid" : "softmax"), type);
  meaning.set("model.moe.router.normalize", json::Value::boolean(false), type);
  return true;
}

void set_router(Meaning& meaning) {
  if (meaning.is_on("@weighs_inputs"))
    meaning.set("model.moe.router.weighs_inputs",
                json::Value::boolean(true),
                meaning.find("@weighs_inputs"));
  if (set_sinkhorn(meaning)) return;
  const std::string score = meaning.text("@router_score", "softmax");
  meaning.set("model.moe.router.score", json::Value::string(score), meaning.find("@router_score"));
  // Without the early softmax the weights of the chosen experts have the sum 1, and those of
  // several experts by sigmoids always.
  const double top_k = meaning.number("@top_k").value_or(2);
  const bool softmax = score == "softmax";
  meaning.set("model.moe.router.normalize",
              json::Value::boolean(softmax ? !meaning.is_on("@pre_softmax") : top_k > 1),
              meaning.find("@pre_softmax"));
  if (!softmax) meaning.set("model.moe.router.normalize_eps", json::Value::number(1e-20));
  meaning.copy("model.moe.router.scale", meaning.given("@router_scale"));
  meaning.copy("model.moe.router.groups", meaning.given("@router_groups"));
  meaning.copy("model.moe.router.top_groups", meaning.given("@router_top_groups"));
  // Groups are ranked by as many of their best scores as a token uses experts of each.
  if (const double groups = meaning.number("@router_top_groups").value_or(0); groups >= 1) {
    const double best = std::floor(top_k / groups);
    if (best > 2)
      meaning.refuse(fmt::format("{}: groups would be ranked by {} of their scores",
                                 meaning.find("@router_top_groups")->flag,
                                 best),
                     "choose --moe-router-topk of one or two experts of each group");
    meaning.set("model.moe.router.group_rank",
                json::Value::string(best <= 1 ? "best" : "best_two"),
                meaning.find("@router_top_groups"));
  }
  if (!meaning.is_on("@expert_bias")) {
    if (is_latent(meaning)) set_off(meaning, "model.moe.router.correction");
    return;
  }
  meaning.set(
      "model.moe.router.correction", json::Value::boolean(true), meaning.find("@expert_bias"));
  meaning.copy("model.moe.router.bias_update", meaning.find("@bias_update"));
}

void set_losses(Meaning& meaning) {
  const Setting* const type = meaning.find("@balancing");
  const std::vector<std::string> names = meaning.texts("@balancing");
  const std::vector<std::string> weights = meaning.texts("@balance");
  meaning.set("model.moe.losses.balance", json::Value::integer(0), type);
  for (std::size_t i = 0; i < names.size(); ++i) {
    const json::Value weight = i < weights.size() ? json::parse(weights[i], "--moe-aux-loss-coeff")
                                                  : json::Value::integer(0);
    const Setting* const from = weights.empty() ? type : meaning.find("@balance");
    if (names[i] == "aux_loss") {
      meaning.set("model.moe.losses.balance", weight, from);
    } else if (names[i] == "seq_aux_loss") {
      meaning.set("model.moe.losses.sequence_balance", weight, from);
    } else if (names[i] != "none" && names[i] != "sinkhorn") {
      meaning.refuse(fmt::format("{} {} is not supported", type->flag, names[i]),
                     "use aux_loss, seq_aux_loss, sinkhorn or none");
    }
  }
  meaning.copy("model.moe.losses.z", meaning.given("@z_loss"));
}

// Megatron-LM splits every expert over the tensor-parallel ranks unless the command says otherwise.
// Experts that some of these ranks split are split by all of them here: as many ranks hold a copy
// of the experts, and the result is the same.
void set_split(Meaning& meaning) {
  const auto tensor = static_cast<std::int64_t>(meaning.number("parallel.tensor.size").value_or(1));
  const Setting* const given = meaning.given("@expert_tensor");
  std::int64_t wanted = given == nullptr ? tensor : given->value.as_integer().value_or(tensor);
  if (wanted > 1 && wanted < tensor) {
    const std::int64_t ranks =
        wanted * static_cast<std::int64_t>(meaning.number("@expert_ranks").value_or(1));
    if (ranks % tensor != 0) {
      meaning.refuse(
          fmt::format("{} {}: {} ranks hold a copy of the experts, and {} tensor-parallel "
                      "ones do not divide them",
                      given->flag,
                      wanted,
                      ranks,
                      tensor),
          "set it to 1 or to --tensor-model-parallel-size");
      return;
    }
    meaning.note(
        fmt::format("{} {}: an expert is split over all {} tensor-parallel ranks, and {} "
                    "ranks hold a copy of the experts, as there",
                    given->flag,
                    wanted,
                    tensor,
                    ranks));
    wanted = tensor;
    meaning.set("parallel.expert", json::Value::integer(ranks / tensor), given);
  }
  if (wanted > 1) meaning.set("parallel.expert_tensor", json::Value::integer(wanted), given);
}

}  // namespace

void set_experts(Meaning& meaning) {
  const Setting* const experts = meaning.given("@experts");
  if (experts == nullptr) return;
  const json::Value* const family = meaning.value("model.family");
  constexpr std::array kFamilies = {"llama", "qwen3", "deepseek_v3", "gpt2"};
  if (family == nullptr || std::ranges::find(kFamilies, family->as_string()) == kFamilies.end()) {
    meaning.refuse(
        fmt::format("{}: experts are built for models with RMSNorm, rotary positions, SwiGLU and "
                    "no biases, and for models with LayerNorm and learned positions",
                    experts->flag),
        "--normalization RMSNorm --position-embedding-type rope --swiglu --disable-bias-linear");
    return;
  }
  const Setting* const ranks = meaning.given("@expert_ranks");
  if (ranks != nullptr) meaning.copy("parallel.expert", ranks);
  set_split(meaning);
  meaning.copy("model.moe.num_experts", experts);
  meaning.copy("model.moe.top_k", meaning.find("@top_k"));
  meaning.copy("model.moe.ffn_hidden_size", meaning.given("@expert_width"));
  if (const Setting* const shared = meaning.given("@shared_width")) {
    meaning.set("model.moe.shared", json::Value::integer(1), shared);
    meaning.copy("model.moe.shared_ffn_hidden_size", shared);
    if (meaning.is_on("@shared_gate"))
      meaning.set(
          "model.moe.shared_gate", json::Value::boolean(true), meaning.find("@shared_gate"));
  }
  if (const Setting* const capacity = meaning.given("@capacity")) {
    meaning.copy("model.moe.capacity", capacity);
    const bool position = meaning.text("@drop_policy", "probs") == "position";
    meaning.set("model.moe.drop",
                json::Value::string(position ? "position" : "probability"),
                meaning.find("@drop_policy"));
  }
  if (is_latent(meaning)) {
    if (meaning.given("@shared_width") == nullptr)
      meaning.set("model.moe.shared", json::Value::integer(0));
    meaning.set("model.moe.first_dense", json::Value::integer(0));
  }
  set_layers(meaning);
  set_router(meaning);
  set_losses(meaning);
}

}  // namespace tessera::interop::megatron

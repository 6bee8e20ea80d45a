// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/rl/rl.h"

#include <algorithm>
#include <array>
#include <memory>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/base/text.h"
#include "tessera/tasks/answer_ends.h"
#include "tessera/tasks/preference_task_base.h"
#include "tessera/tasks/rl/prompts.h"

namespace tessera::tasks {
namespace {

PromptsOptions samples_of(const RlOptions& options, std::int64_t length, std::int32_t pad_id) {
  return {.length = length,
          .longest = length - options.max_new_tokens,
          .pad_id = pad_id,
          .uses = options.samples * options.iterations,
          .reference = options.kl.coefficient > 0 && options.kl.place == KlPlace::Loss};
}

}  // namespace

bool Rl::has_critic() const {
  return options_.advantage.estimator == "gae" || options_.advantage.estimator == "dschat_gae";
}

json::Value Rl::objective_options(const data::DataOptions& /*data*/) const {
  const RlLoss& loss = options_.loss;
  json::Value out =
      json::Value::object({{"type", json::Value::string(loss.type)},
                           {"ratio", json::Value::string(loss.ratio)},
                           {"epsilon_low", json::Value::number(loss.epsilon_low)},
                           {"epsilon_high", json::Value::number(loss.epsilon_high)},
                           {"temperature", json::Value::number(options_.temperature)},
                           {"longest", json::Value::integer(options_.max_new_tokens)}});
  if (options_.top_k > 0 || options_.top_p < 1) {
    out["top_k"] = json::Value::integer(options_.top_k);
    out["top_p"] = json::Value::number(options_.top_p);
  }
  if (options_.entropy_coefficient > 0)
    out["entropy_coefficient"] = json::Value::number(options_.entropy_coefficient);
  if (loss.delta) out["delta"] = json::Value::number(*loss.delta);
  if (has_reference() && options_.kl.place == KlPlace::Loss) {
    out["kl_coefficient"] = json::Value::number(options_.kl.coefficient);
    out["kl_estimator"] = json::Value::string(options_.kl.estimator);
  }
  if (!options_.ptx.data.empty())
    out["ptx_coefficient"] = json::Value::number(options_.ptx.coefficient);
  return out;
}

std::vector<data::TensorSpec> Rl::tensors(std::int64_t sequence_length) const {
  return Prompts(samples_of(options_, sequence_length, 0)).tensors();
}

ReadRecords Rl::reader(const DataRequest& request) const {
  return [this, &request](const std::vector<std::string>& names, data::Split split) {
    PromptsOptions samples =
        samples_of(options_, request.sequence_length, request.tokenizer.padding());
    TESSERA_REQUIRE(samples.longest > 0,
                    Config,
                    fmt::format("completions of {} tokens leave no room for a prompt in "
                                "data.sequence_length {}",
                                options_.max_new_tokens,
                                request.sequence_length),
                    "raise data.sequence_length, or lower rl.max_new_tokens");
    const auto chat = open_chat_template(options_.chat_template,
                                         {request.model_folder, request.tokenizer_folder},
                                         request.tokenizer);
    samples.ends = answer_ends(request.tokenizer, chat ? &*chat : nullptr).ids;
    auto out = std::make_unique<Prompts>(samples);
    out->read_files(data::record_files(names, split),
                    record_options(request.options, "{\"prompt\": \"...\", \"answer\": \"...\"}"),
                    ConversationTokenizer(request.tokenizer, chat ? &*chat : nullptr),
                    request.tokenizer,
                    request.how.poll);
    if (split == data::Split::Train) {
      const ConversationTokenizer conversations(request.tokenizer, chat ? &*chat : nullptr);
      for (const RlReward& reward : rewards_) {
        if (!reward.model || reward.model->pairs.empty()) continue;
        // Both texts of a pair have room for the length of a completion with its prompt.
        auto pairs = std::make_unique<PreferenceSamples>(PreferenceOptions{
            .length = 2 * request.sequence_length, .pad_id = request.tokenizer.padding()});
        pairs->read_files(
            data::record_files(reward.model->pairs, data::Split::Validation),
            record_options({}, "{\"prompt\": \"...\", \"chosen\": \"...\", \"rejected\": \"...\"}"),
            conversations,
            request.how.poll);
        out->add_pairs(reward.name, std::move(pairs));
      }
    }
    if (split == data::Split::Train && !options_.ptx.data.empty()) {
      out->add_texts(data::open_dataset(request.options,
                                        options_.ptx.data,
                                        "rl.ptx.data",
                                        request.tokenizer,
                                        request.vocab_size,
                                        request.sequence_length,
                                        request.how));
    }
    if (out->left_out() > 0) {
      log::warn_once(fmt::format(
          "{} of {} prompts are left out: they are longer than the {} tokens that completions of "
          "rl.max_new_tokens leave in data.sequence_length",
          text::with_commas(out->left_out()),
          text::with_commas(out->stats().documents),
          samples.longest));
    }
    return out;
  };
}

std::int64_t rollout_ranks_of(const json::Value& source) {
  json::Value spelled = source;
  spell_out_task(spelled);
  const json::Value* const task = spelled.is_object() ? spelled.find("task") : nullptr;
  const json::Value* const type =
      task != nullptr && task->is_object() ? task->find("type") : nullptr;
  const json::Value* const params = type != nullptr ? task->find("params") : nullptr;
  if (params == nullptr || !params->is_object() || !type->is_string() || type->as_string() != "rl")
    return 0;
  const auto number = [&](const char* key) -> std::int64_t {
    const json::Value* const found = params->find(key);
    return found != nullptr ? found->as_integer().value_or(-1) : -1;
  };
  if (number("overlap") != 1) return 0;
  return std::max<std::int64_t>(1, number("rollout_ranks"));
}

const Rl* as_rl(const Task* task) {
  return dynamic_cast<const Rl*>(task);
}

namespace {

template <class Wrong>
void check_overlap(const RlOptions& options, const Wrong& wrong, const config::Origins& origins) {
  if (options.overlap == 0) {
    if (origins.given("rollout_ranks"))
      wrong("rollout_ranks", "all ranks write rollouts", "set overlap to 1, or remove it");
    return;
  }
  if (options.dynamic_rounds > 0) {
    wrong(
        "overlap",
        "not built yet: rl.overlap with rl.dynamic_rounds, because rewards choose the groups, and "
        "the ranks that learn compute them",
        "set dynamic_rounds to 0, or remove overlap");
  }
}

void check_rl(const RlOptions& options,
              bool critic,
              bool reward_model,
              config::Problems& problems,
              const config::Origins& origins) {
  const auto wrong = [&](const char* key, std::string what, std::string fix) {
    problems.add(origins.place(key), key, std::move(what), std::move(fix));
  };
  const std::string& estimator = options.advantage.estimator;
  if ((estimator == "group" || estimator == "leave_one_out") && options.samples < 2) {
    wrong("samples",
          fmt::format("the estimator {} compares the completions of a prompt, and samples is {}",
                      estimator,
                      options.samples),
          "set samples to 2 or more");
  }
  if (options.parity == Parity::Off && options.updates() > 1) {
    wrong("parity",
          "several updates learn from a rollout, so that a pass for the log-probabilities of its "
          "policy is needed in any case",
          "set parity to \"measure\"");
  }
  if (estimator == "dschat_gae" && options.kl.place != KlPlace::Reward) {
    wrong("kl.place",
          "dschat_gae charges the divergence in the rewards",
          "set kl.place to \"reward\"");
  }
  if (options.kl.target && (options.kl.place != KlPlace::Reward || options.kl.coefficient == 0)) {
    wrong("kl.target",
          "the coefficient is adapted where the divergence is charged in the rewards",
          "set kl.place to \"reward\" and kl.coefficient to its first value, 0.1 say");
  }
  if (options.on_alarm == OnAlarm::RaiseKl &&
      (options.kl.place != KlPlace::Reward || options.kl.coefficient == 0)) {
    wrong("on_alarm",
          "raise_kl raises the coefficient of a divergence that is charged in the rewards",
          "set kl.place to \"reward\" and kl.coefficient to its first value, or on_alarm to "
          "\"stop\"");
  }
  for (const char* key : {"roll_back.rollouts", "roll_back.most", "roll_back.kl_factor"}) {
    if (options.on_alarm == OnAlarm::RollBack || !origins.given(key)) continue;
    wrong(key, "no alarm sends the run back", "set on_alarm to \"roll_back\", or remove it");
  }
  if (options.roll_back.kl_factor > 1 &&
      (options.kl.place != KlPlace::Reward || options.kl.coefficient == 0)) {
    wrong("roll_back.kl_factor",
          "it raises the coefficient of a divergence that is charged in the rewards",
          "set kl.place to \"reward\" and kl.coefficient to its first value, or remove it");
  }
  if (options.dynamic_rounds > 0 && options.samples < 2) {
    wrong("dynamic_rounds",
          "groups of one completion always earn the same",
          "set samples to 2 or more, or dynamic_rounds to 0");
  }
  for (const char* key : {"critic.from", "critic.lr", "critic.clip_range"}) {
    if (critic || !origins.given(key)) continue;
    wrong(key,
          fmt::format("the estimator {} has no critic", estimator),
          "remove it, or choose the algorithm ppo");
  }
  const auto absent = [&](const char* model, bool there) {
    for (const char* key :
         {"zero_stage", "dtype", "adapter", "trunk", "tensor", "ranks", "offload.device"}) {
      const std::string path = fmt::format("models.{}.{}", model, key);
      if (!there && origins.given(path))
        wrong(path.c_str(), fmt::format("there is no {} model", model), "remove it");
    }
  };
  absent("reference", options.kl.coefficient > 0);
  absent("reward", reward_model);
  absent("critic", critic);
  const auto whole_or_sharded = [&](const char* path, const RlModel& model) {
    const std::int64_t stage = model.zero_stage.value_or(3);
    if (stage == 0 || stage == 3) return;
    wrong(path,
          fmt::format("it is {}, and a model that is only read has no gradients and moments to "
                      "shard",
                      stage),
          "set it to 3 (sharded) or 0 (whole on each data-parallel rank)");
  };
  whole_or_sharded("models.reference.zero_stage", options.models.reference);
  whole_or_sharded("models.reward.zero_stage", options.models.reward);
  const auto rests = [&](const std::string& name, const RlModel& model) {
    const std::string path = fmt::format("models.{}.offload", name);
    for (const char* key : {"nvme_path", "buffer_count", "max_in_cpu"}) {
      const std::string idle = fmt::format("{}.{}", path, key);
      if (!model.offload.to_disk() && origins.given(idle))
        wrong(idle.c_str(),
              "offload.device is not \"nvme\"",
              "set offload.device to \"nvme\", or remove this");
    }
    if (!model.offload.to_disk()) return;
    if (model.offload.nvme_path.empty()) {
      wrong((path + ".nvme_path").c_str(),
            "it is missing, and offload.device is \"nvme\"",
            "set it to a folder on a disk");
    }
    if (model.zero_stage.value_or(3) != 3) {
      wrong((path + ".device").c_str(),
            fmt::format("weights rest on a disk in parts, as in ZeRO stage 3, and zero_stage is {}",
                        *model.zero_stage),
            fmt::format("set models.{}.zero_stage to 3, or remove it", name));
    }
  };
  rests("reference", options.models.reference);
  rests("reward", options.models.reward);
  rests("critic", options.models.critic);
  const auto listed = [&](const char* path, const RlModel& model) {
    if (model.ranks.is_null() || model.rank_range()) return;
    wrong(path,
          fmt::format("it is {}, and a model has consecutive ranks", model.ranks.dump()),
          "list them in order: [2, 3]");
  };
  listed("models.reference.ranks", options.models.reference);
  listed("models.reward.ranks", options.models.reward);
  listed("models.critic.ranks", options.models.critic);
  if (!options.models.critic.adapter.is_null() && !options.models.critic.adapter.is_object()) {
    wrong("models.critic.adapter",
          fmt::format("it is {}", options.models.critic.adapter.dump()),
          "write it as the section adapter: {\"type\": \"lora\", \"r\": 8}");
  }
  check_overlap(options, wrong, origins);
  for (const char* key : {"ptx.coefficient", "ptx.samples"}) {
    if (!options.ptx.data.empty() || !origins.given(key)) continue;
    wrong(key, "there are no pretraining texts", "name them in ptx.data, or remove it");
  }
  if (options.reference && options.kl.coefficient == 0) {
    wrong("reference",
          "a reference is named, and the divergence from it costs nothing",
          "set kl.coefficient to 0.05, say, or remove it");
  }
}

/// Keys of rl.models that are refused by name, with what to do instead.
constexpr auto kPlannedOfModels = std::to_array<std::pair<std::string_view, std::string_view>>({
    {"adapter",
     "remove it: name the folder or the run of the adapter, whose weights are merged as they are "
     "read"},
});

/// Settles the model that a critic which shares a trunk begins as.
void settle_trunk(RlOptions& options,
                  const std::vector<RlReward>& rewards,
                  config::Problems& problems,
                  const config::Origins& origins) {
  if (!options.models.critic.shares_trunk()) return;
  const auto wrong = [&](const char* key, std::string what, std::string fix) {
    problems.add(origins.place(key), key, std::move(what), std::move(fix));
  };
  std::set<std::string> from;
  for (const RlReward& reward : rewards) {
    if (reward.model) from.insert(reward.model->from);
  }
  if (from.empty()) {
    wrong("models.critic.trunk",
          "no reward model has a trunk that the critic could share",
          "add a reward of the type model, or remove it");
    return;
  }
  if (!options.critic.from && from.size() == 1) options.critic.from = *from.begin();
  if (!options.critic.from) {
    wrong("models.critic.trunk",
          fmt::format("there are {} reward models", from.size()),
          "name the one whose trunk is shared in critic.from");
  } else if (!from.contains(*options.critic.from)) {
    wrong("critic.from",
          fmt::format(
              "the critic shares the trunk of a reward model, and {} is not one of rl.rewards",
              *options.critic.from),
          "name the \"from\" of a reward, or set models.critic.trunk to \"own\"");
  }
  for (const char* key : {"models.reward.zero_stage",
                          "models.reward.dtype",
                          "models.reward.tensor",
                          "models.reward.ranks",
                          "models.reward.offload.device"}) {
    if (from.size() > 1 || !origins.given(key)) continue;
    wrong(key,
          "the reward model shares the critic's trunk, and so its layout",
          "set it in models.critic instead");
  }
}

/// The parameters without those that are planned; these are refused by name.
json::Value without_planned(json::Value params, config::Problems& problems) {
  if (json::Value* const models = params.find("models"); models != nullptr && models->is_object()) {
    for (auto& [name, model] : models->members()) {
      if (!model.is_object()) continue;
      for (const auto& [key, fix] : kPlannedOfModels) {
        const json::Value* const found = model.find(key);
        const bool built = name == "critic" && key == "adapter";
        if (found == nullptr || built) continue;
        problems.add(found->place,
                     fmt::format("models.{}.{}", name, key),
                     fmt::format("not built yet: rl.models.{}.{}", name, key),
                     std::string(fix));
        std::erase_if(model.members(), [&](const auto& member) { return member.first == key; });
      }
    }
  }
  return params;
}

std::unique_ptr<Task> make_rl(const json::Value& params,
                              config::Problems& problems,
                              config::Origins& origins) {
  RlOptions options = read_rl_options(without_planned(params, problems), problems, origins);
  std::vector<RlReward> rewards;
  if (!options.rewards.is_null()) rewards = read_rewards(options.rewards, problems);
  settle_trunk(options, rewards, problems, origins);
  auto out = std::make_unique<Rl>(std::move(options), std::move(rewards));
  const bool reward_model = std::ranges::any_of(
      out->rewards(), [](const RlReward& reward) { return reward.model.has_value(); });
  check_rl(out->options(), out->has_critic(), reward_model, problems, origins);
  return out;
}

TESSERA_TASK("rl", make_rl);

}  // namespace
}  // namespace tessera::tasks

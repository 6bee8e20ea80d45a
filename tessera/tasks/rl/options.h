// SPDX-License-Identifier: Apache-2.0
// The options of reinforcement learning. An algorithm is a set of values for them: how rewards
// become advantages, which loss these have, and where the divergence from the reference is charged.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/registry.h"
#include "tessera/config/choices.h"
#include "tessera/config/disk_keys.h"
#include "tessera/config/fields.h"
#include "tessera/config/json.h"

namespace tessera::tasks {

/// `rl.advantage`: how rewards become advantages.
struct RlAdvantage {
  std::string estimator = "group";
  std::string scale = "group";
  std::string sum = "sum_then_normalize";
  double epsilon = 1e-4;
  double gamma = 1.0, lambda = 0.95;
  bool whiten = false;
  std::optional<double> clip_reward;
  void describe(config::Fields& fields);
};

/// `rl.loss`: the loss of the policy, losses/policy.h.
struct RlLoss {
  std::string type = "grpo";
  std::string ratio = "token";
  double epsilon_low = 0.2, epsilon_high = 0.2;
  std::optional<double> delta;
  void describe(config::Fields& fields);
};

/// The place where the divergence from the reference is charged.
enum class KlPlace : std::uint8_t { Loss, Reward };
constexpr auto kKlPlaces =
    std::to_array<config::Named<KlPlace>>({{KlPlace::Loss, "loss"}, {KlPlace::Reward, "reward"}});

/// `rl.kl`.
struct RlKl {
  double coefficient = 0.0;
  std::string estimator = "k3";
  KlPlace place = KlPlace::Loss;
  std::optional<double> target;
  std::int64_t horizon = 10000;
  void describe(config::Fields& fields);
};

/// `rl.critic`: the model that predicts expected rewards, which GAE needs.
struct RlCritic {
  std::optional<std::string> from;
  std::optional<double> lr;
  double clip_range = 0.2;
  void describe(config::Fields& fields);
};

/// `rl.ptx`: pretraining texts whose loss is added to the policy's (Ouyang et al. 2022, "Training
/// language models to follow instructions with human feedback", PPO-ptx).
struct RlPtx {
  std::vector<std::string> data;  ///< empty: there are none
  double coefficient = 27.8;      ///< of the mean loss of a token
  std::optional<std::int64_t> samples;
  void describe(config::Fields& fields);
};

/// `rl.validation`: how held-out prompts are answered.
struct RlValidation {
  std::int64_t samples = 1;
  double temperature = 0.0;  ///< 0: the most likely token is always chosen
  void describe(config::Fields& fields);
};

/// `rl.models`: the layout of a reward model, the critic or the reference; what is absent is the
/// policy's.
struct RlModel {
  std::optional<std::int64_t> zero_stage;
  std::optional<std::string> dtype;    ///< "fp32" or "bf16"
  std::optional<std::int64_t> tensor;  ///< number of ranks that share every layer
  json::Value ranks;                   ///< a list of consecutive ranks; null: all that learn
  config::ParamOffloadKeys offload;    ///< of its weights
  /// Returns the first rank and the number of ranks; nothing if `ranks` is null or no such list.
  [[nodiscard]] std::optional<std::pair<std::int64_t, std::int64_t>> rank_range() const;
  [[nodiscard]] bool has_own_groups() const { return tensor || !ranks.is_null(); }
  void describe(config::Fields& fields);
};
struct RlCriticModel : RlModel {
  json::Value adapter;  ///< as the section `adapter`; null: the whole critic is trained
  /// "own", or "reward": the weights that are not trained are those of the reward model, in the
  /// same memory.
  std::string trunk = "own";
  [[nodiscard]] bool shares_trunk() const { return trunk == "reward"; }
  void describe(config::Fields& fields);
};
struct RlModels {
  RlModel reference, reward;
  RlCriticModel critic;
  void describe(config::Fields& fields);
};

/// The treatment of completions that reach the maximum number of tokens without an end.
enum class Truncated : std::uint8_t { Keep, Mask };
constexpr auto kTruncated =
    std::to_array<config::Named<Truncated>>({{Truncated::Keep, "keep"}, {Truncated::Mask, "mask"}});

/// The reaction to the difference between the log-probabilities in generation and in training.
enum class Parity : std::uint8_t { Off, Measure, Exact };
constexpr auto kParities = std::to_array<config::Named<Parity>>(
    {{Parity::Off, "off"}, {Parity::Measure, "measure"}, {Parity::Exact, "exact"}});

/// The form in which keys and values are stored during generation.
enum class RlCache : std::uint8_t { Same, BF16, Int8 };
constexpr auto kRlCaches = std::to_array<config::Named<RlCache>>(
    {{RlCache::Same, "same"}, {RlCache::BF16, "bf16"}, {RlCache::Int8, "int8"}});

/// The effect of an alarm (rlhf/alarms.h).
enum class OnAlarm : std::uint8_t { Warn, Stop, RaiseKl, RollBack };
constexpr auto kOnAlarm = std::to_array<config::Named<OnAlarm>>({{OnAlarm::Warn, "warn"},
                                                                 {OnAlarm::Stop, "stop"},
                                                                 {OnAlarm::RaiseKl, "raise_kl"},
                                                                 {OnAlarm::RollBack, "roll_back"}});

/// `rl.roll_back`: how far and how often a run goes back if `on_alarm` is roll_back.
struct RlRollBack {
  std::int64_t rollouts = 5;  ///< between the checkpoint and the first rollout of the alarm
  std::int64_t most = 3;
  double kl_factor = 1.0;
  void describe(config::Fields& fields);
};

/// The task's parameters.
struct RlOptions {
  std::string algorithm = "grpo";
  std::optional<std::string> preset;
  std::int64_t samples = 8;
  std::int64_t max_new_tokens = 64;
  double temperature = 1.0;
  std::int64_t top_k = 0;
  double top_p = 1.0;
  std::int64_t dynamic_rounds = 0;
  double entropy_coefficient = 0.0;
  std::int64_t iterations = 1;
  std::int64_t mini_batches = 1;
  std::int64_t prompts_at_once = 8;
  std::int64_t completions_at_once = 64;
  RlCache cache = RlCache::Same;
  bool fuse_adapter = false;  ///< whether rollouts are written with W + B A
  std::int64_t overlap = 0;   ///< 1: other ranks write the next rollout while this one is learned
  std::optional<std::int64_t> rollout_ranks, rollout_tensor;
  json::Value rewards;
  RlAdvantage advantage;
  RlLoss loss;
  RlKl kl;
  RlCritic critic;
  RlPtx ptx;
  RlValidation validation;
  RlModels models;
  std::optional<std::string> reference;
  Truncated truncated = Truncated::Keep;
  Parity parity = Parity::Measure;
  double parity_limit = 0.1;
  OnAlarm on_alarm = OnAlarm::Warn;
  RlRollBack roll_back;
  std::string chat_template;
  void describe(config::Fields& fields);
  /// Returns the number of completions of a rollout if an update takes `batch` of them.
  [[nodiscard]] std::int64_t rollout_size(std::int64_t batch) const { return batch * mini_batches; }
  /// Returns the number of updates per rollout.
  [[nodiscard]] std::int64_t updates() const { return iterations * mini_batches; }
  /// Returns the number of ranks that only generate.
  [[nodiscard]] int generators() const {
    return overlap == 0 ? 0 : static_cast<int>(rollout_ranks.value_or(1));
  }
  /// Returns the number of pretraining samples of an update that takes `batch` completions.
  [[nodiscard]] std::int64_t ptx_samples(std::int64_t batch) const {
    return ptx.data.empty() ? 0 : ptx.samples.value_or(batch);
  }
};

/// An algorithm, or a preset: values of options, which a configuration may override one by one.
struct RlAlgorithm {
  std::string text;                    ///< description for the documentation
  void (*settle)(RlOptions& options);  ///< sets the values that differ from the options' defaults
};
/// The values of `rl.algorithm`. To add one, add a file to tasks/rl_algorithms/.
Registry<RlAlgorithm>& rl_algorithms();
/// The values of `rl.preset`: an algorithm as another program computes it.
Registry<RlAlgorithm>& rl_presets();
#define TESSERA_RL_ALGORITHM(key, name, ...)     \
  static const bool tessera_rl_algorithm_##key = \
      ::tessera::tasks::rl_algorithms().add(name, __VA_ARGS__)
#define TESSERA_RL_PRESET(key, name, ...) \
  static const bool tessera_rl_preset_##key = ::tessera::tasks::rl_presets().add(name, __VA_ARGS__)

/// Returns the options of `params`, which override those of the algorithm or preset that it names.
RlOptions read_rl_options(const json::Value& params,
                          config::Problems& problems,
                          config::Origins& origins);

}  // namespace tessera::tasks

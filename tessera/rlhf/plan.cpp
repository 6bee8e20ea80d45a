// SPDX-License-Identifier: Apache-2.0
#include "tessera/rlhf/plan.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/engine/open_model.h"
#include "tessera/memory/device.h"
#include "tessera/nn/block.h"
#include "tessera/nn/kv_cache.h"
#include "tessera/parallel/layout.h"
#include "tessera/parallel/tensor_rules.h"
#include "tessera/planner/data_plan.h"
#include "tessera/planner/memory.h"
#include "tessera/planner/model_plan.h"
#include "tessera/planner/place.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/precision.h"
#include "tessera/planner/recipe.h"
#include "tessera/planner/run_plan.h"
#include "tessera/planner/validate.h"
#include "tessera/rlhf/alarms.h"
#include "tessera/rlhf/critic.h"
#include "tessera/rlhf/generators.h"
#include "tessera/rlhf/layouts.h"
#include "tessera/rlhf/reference_model.h"
#include "tessera/rlhf/rollout_model.h"
#include "tessera/tasks/rl/reward_http.h"
#include "tessera/tasks/rl/rl.h"

namespace tessera::rlhf {
namespace {

/// Ranks may share the layers of all models as in training.
template <class Refuse>
void refuse_layouts(const parallel::Layout& layout, const Refuse& refuse) {
  if (layout.data_ranks == layout.ranks()) return;
  if (layout.stages.stages > 1 || layout.context > 1 || layout.sequence)
    refuse("ranks that share stages or tokens",
           "set parallel.tensor alone, or remove the section parallel");
  if (layout.tensor != parallel::TensorLayout::OneD)
    refuse("parallel.tensor.mode " + config::name_of(parallel::kTensorLayouts, layout.tensor),
           "set parallel.tensor.mode to 1d");
}

/// Requires that the ranks that share a model's layers can: those of the policy's layers, or
/// `ranks`, those of its own. `optimizer`: of a model that is trained; `key`: of its ranks.
void require_share(const planner::Plan& plan,
                   const std::optional<ModelRanks>& ranks,
                   const models::Resolved& model,
                   const std::string& what,
                   const optim::OptimizerOptions& optimizer = {},
                   const std::string& key = "rl.models, tensor") {
  const parallel::TensorOptions::Grid& of_policy = plan.layout().grid;
  parallel::TensorOptions tensor;
  tensor.size = ranks ? ranks->tensor : of_policy.size();
  if (tensor.size == 1) return;
  tensor.share_head = parallel::ranks_that_share_a_head(model.model, tensor.size);
  config::Problems problems;
  parallel::check_shared_layers(tensor, model.model, problems);
  parallel::check_shared_gradients(optimizer, problems, {});
  TESSERA_REQUIRE(problems.empty() || !ranks,
                  Config,
                  fmt::format("the layers of the {} do not divide among {} ranks ({}): {}",
                              what,
                              tensor.size,
                              key,
                              problems.list().front().what),
                  problems.concern("optimizer.type")
                      ? "use AdamW, or remove tensor"
                      : "choose a tensor that divides its heads and its vocabulary");
  TESSERA_REQUIRE(
      ranks || (problems.empty() && tensor.grid() == of_policy),
      Unsupported,
      fmt::format(
          "the {} cannot be computed by the {} ranks that share the policy's "
          "layers (parallel.tensor): its heads or vocabulary do not divide by parallel.tensor.size",
          what,
          of_policy.size()),
      "choose a parallel.tensor that divides the heads and the vocabulary of every "
      "model, give this one a size of its own (rl.models, tensor), or remove it");
}

std::int64_t width_of(const planner::Plan& plan) {
  return plan.layout().working == DType::BF16 ? 2 : 4;
}

/// Refuses rl.fuse_adapter where there is nothing to merge, or no room for what is merged.
void check_fused(const planner::Plan& plan, const tasks::RlOptions& options) {
  const std::string key = "rl.fuse_adapter ";
  TESSERA_REQUIRE(plan.model().adapter != nullptr,
                  Config,
                  key + "merges an adapter for rollouts, and the policy has none",
                  "remove it, or add the section adapter");
  TESSERA_REQUIRE(options.parity != tasks::Parity::Exact,
                  Config,
                  key +
                      "rounds the weights of rollouts, so that sampling cannot have the "
                      "log-probabilities of training, and rl.parity is exact",
                  "remove it, or set rl.parity to measure");
  TESSERA_REQUIRE(!plan.model().rules.packed,
                  Config,
                  key +
                      "keeps copies of the weights in full, and adapter.quantize_base has them in "
                      "fewer bits",
                  "remove one of them");
  TESSERA_REQUIRE(options.overlap > 0 || regroups(plan) || plan.layout().zero_stage < 3 ||
                      plan.layout().data_ranks == 1,
                  Config,
                  key +
                      "keeps whole copies of the weights on each data-parallel rank, and in ZeRO "
                      "stage 3 these ranks have parts of them",
                  "set zero_optimization.stage to 2, or remove it");
}

/// Refuses rollouts in other groups of ranks than those of the training where they cannot be, or
/// would break a promise.
void check_regrouped(const planner::Plan& plan, const tasks::RlOptions& options) {
  const int tensor = rollout_tensor(plan);
  if (options.overlap == 0 && !regroups(plan)) return;
  const int writers = options.overlap > 0 ? options.generators() : plan.ranks();
  TESSERA_REQUIRE(
      writers % tensor == 0,
      Config,
      fmt::format("rl.rollout_tensor: {} {} cannot be divided into groups of {} that "
                  "share layers",
                  writers,
                  writers == 1 ? "rank that writes rollouts" : "ranks that write rollouts",
                  tensor),
      "choose a number that divides the ranks that write rollouts");
  require_share(plan,
                ModelRanks{.first = 0, .count = writers, .tensor = tensor},
                plan.model().resolved,
                "policy",
                {},
                "rl.rollout_tensor");
  if (tensor == plan.layout().grid.size()) return;
  TESSERA_REQUIRE(options.parity != tasks::Parity::Exact,
                  Config,
                  fmt::format("{} ranks share each layer in rollouts and {} in training, which "
                              "rounds sums otherwise, so that sampling cannot have the "
                              "log-probabilities of training, and rl.parity is exact",
                              tensor,
                              plan.layout().grid.size()),
                  "set rl.parity to measure, or rl.rollout_tensor to parallel.tensor");
  TESSERA_REQUIRE(!plan.model().rules.packed,
                  Unsupported,
                  "not built yet: rl.rollout_tensor other than parallel.tensor with "
                  "adapter.quantize_base",
                  "remove one of them");
}

/// Returns the bytes of the weights that rl.fuse_adapter copies, on each of `sharers` ranks that
/// have whole layers together.
std::int64_t fused_bytes(const planner::Plan& plan, std::int64_t sharers) {
  std::map<std::string, std::int64_t> numel;
  const std::string a = ".lora_A.weight", b = ".lora_B.weight";
  std::int64_t all = 0;
  const auto params = nn::parameters_of(plan.model().resolved.model);
  for (const auto& param : params) {
    if (param->name.ends_with(a))
      numel[param->name.substr(0, param->name.size() - a.size())] = param->shape.back();
  }
  for (const auto& param : params) {
    if (!param->name.ends_with(b)) continue;
    const auto inputs = numel.find(param->name.substr(0, param->name.size() - b.size()));
    if (inputs != numel.end()) all += param->numel() / param->shape.back() * inputs->second;
  }
  return all * width_of(plan) / sharers;
}

/// Sinkhorn's scaling depends on all tokens of a micro-batch, and other passes than training choose
/// the best experts: ratios of probabilities would differ from 1 before any update.
bool routes_by_sinkhorn(const json::Value& description) {
  const json::Value* at = description.find("moe");
  for (const char* key : {"router", "choice"})
    at = at != nullptr && at->is_object() ? at->find(key) : nullptr;
  return at != nullptr && at->is_string() && at->as_string() == "sinkhorn";
}

void refuse_what_is_not_built(const planner::Plan& plan, const tasks::Rl& task) {
  const auto refuse = [](const std::string& what, const std::string& fix) {
    throw Error(Error::Kind::Unsupported, "not built yet: the task rl with " + what, fix);
  };
  const data::DataOptions& data = plan.data().options;
  refuse_layouts(plan.layout(), refuse);
  if (plan.recipe().ramp) refuse("rampup_batch_size", "remove it");
  if (!data.drop_last) refuse("data.drop_last false", "remove it");
  if (plan.model().rules.tiles) refuse("tiling, whose weights rollouts read whole", "remove it");
  if (plan.model().freezing.any()) {
    refuse("parameters that are frozen in a part of the training",
           "freeze for the whole training: optimizer.groups with \"frozen\": true");
  }
  if (routes_by_sinkhorn(plan.model().resolved.description)) {
    refuse(
        "model.moe.router.choice sinkhorn, because a rollout cannot choose experts as training "
        "does",
        "train the model with router.choice best");
  }
  if (!data.sources.is_null()) refuse("data.sources", "give one list of files in data.train");
  const tasks::RlOptions& options = task.options();
  if (options.parity == tasks::Parity::Exact &&
      memory::device_kind(plan.run().options.device) != DeviceKind::Cpu) {
    refuse("parity \"exact\" on a device", "set rl.parity to \"measure\", or run.device to cpu");
  }
  const tasks::RlModels& others = options.models;
  if ((others.reference.offload.to_disk() || others.reward.offload.to_disk() ||
       others.critic.offload.to_disk()) &&
      memory::device_kind(plan.run().options.device) != DeviceKind::Cpu) {
    refuse("rl.models.*.offload on a device", "remove it, or set run.device to cpu");
  }
  if (options.overlap > 0) {
    if (plan.model().rules.packed)
      refuse("rl.overlap and adapter.quantize_base", "remove one of them");
  }
  const bool same = options.cache == tasks::RlCache::Same ||
                    (options.cache == tasks::RlCache::BF16 && plan.layout().working == DType::BF16);
  TESSERA_REQUIRE(same || options.parity != tasks::Parity::Exact,
                  Config,
                  std::string("rl.cache ") +
                      (options.cache == tasks::RlCache::Int8 ? "int8" : "bf16") +
                      " rounds keys and values, so that sampling cannot have the "
                      "log-probabilities of training, and rl.parity is exact",
                  "set rl.cache to same, or rl.parity to measure");
  check_regrouped(plan, options);
  if (options.fuse_adapter) check_fused(plan, options);
  const std::int64_t size = options.rollout_size(plan.recipe().global_batch);
  TESSERA_REQUIRE(size % options.samples == 0,
                  Config,
                  fmt::format("a rollout of {} completions is not a whole number of groups of "
                              "rl.samples {}",
                              size,
                              options.samples),
                  fmt::format("set train_batch_size to a multiple of {}", options.samples));
}

/// Requires that a checkpoint from before an alarm is still there when the alarm has its effect.
void require_checkpoints(const planner::Plan& plan, const tasks::RlOptions& options) {
  if (options.on_alarm != tasks::OnAlarm::RollBack) return;
  const checkpoint::Options& saved = plan.run().checkpoint;
  TESSERA_REQUIRE(!saved.use_node_local_storage,
                  Unsupported,
                  "not built yet: rl.on_alarm roll_back with checkpoint.use_node_local_storage",
                  "save on a disk that all hosts share, or set rl.on_alarm to \"stop\"");
  // Copies in memory may be of steps that a run which went back makes again.
  TESSERA_REQUIRE(saved.peer_copies == 0,
                  Unsupported,
                  "not built yet: rl.on_alarm roll_back with checkpoint.peer_copies",
                  "set checkpoint.peer_copies to 0, or rl.on_alarm to \"stop\"");
  const std::int64_t every = saved.when().steps;
  TESSERA_REQUIRE(
      every > 0,
      Config,
      "rl.on_alarm roll_back continues from a checkpoint, and checkpoint.every is not a "
      "number of steps",
      "set checkpoint.every to 10, say");
  const std::int64_t back = (kRolloutsOfAlarm - 1 + options.roll_back.rollouts) * options.updates(),
                     needed = (back + every - 1) / every + 1;
  TESSERA_REQUIRE(
      saved.keep >= needed,
      Config,
      fmt::format("an alarm sends the run back by {} steps or more (rl.roll_back), and "
                  "checkpoint.keep {} of every {} steps keeps none that is old enough",
                  back,
                  saved.keep,
                  every),
      fmt::format("set checkpoint.keep to {} or more, or raise checkpoint.every", needed));
}

/// Refuses checkpoints of which each host keeps a part, if hosts may have no rank that learns.
void check_hosts(const planner::Plan& plan, const tasks::RlOptions& options, int ranks_of_host) {
  const bool several = ranks_of_host > 0 && ranks_of_host < plan.ranks() + options.generators();
  if (options.overlap == 0 || !several) return;
  const checkpoint::Options& saved = plan.run().checkpoint;
  TESSERA_REQUIRE(
      !saved.use_node_local_storage && saved.peer_copies == 0,
      Unsupported,
      fmt::format("not built yet: rl.overlap on several hosts with checkpoint.{}",
                  saved.use_node_local_storage ? "use_node_local_storage" : "peer_copies"),
      "remove it and save on a disk that all hosts share, or set rl.overlap to 0");
}

/// Returns the bytes of an element of the cache of keys and values.
double cache_width(const planner::Plan& plan,
                   const tasks::RlOptions& options,
                   std::int64_t channels) {
  constexpr double kScale = 4.0;  // one fp32 for the channels of a token and head
  if (options.cache == tasks::RlCache::Int8) return 1.0 + kScale / static_cast<double>(channels);
  if (options.cache == tasks::RlCache::BF16) return 2.0;
  return static_cast<double>(width_of(plan));
}

/// Returns the bytes of the pages of keys and values: of the prompts, which completions share, and
/// of the completions that are continued at a time.
std::int64_t cache_bytes(const planner::Plan& plan, const tasks::RlOptions& options) {
  const models::Resolved& model = plan.model().resolved;
  const auto whole = [](std::int64_t tokens) {
    return (tokens + nn::kPageTokens - 1) / nn::kPageTokens * nn::kPageTokens;
  };
  const std::int64_t heads = std::max<std::int64_t>(1, model.num_heads),
                     kv_heads = model.num_kv_heads > 0 ? model.num_kv_heads : heads,
                     channels = model.hidden_size / heads;
  const std::int64_t together = std::min(options.prompts_at_once * options.samples,
                                         options.rollout_size(plan.recipe().global_batch)),
                     rows = std::min(together, options.completions_at_once),
                     prompts = std::min(together / options.samples, rows + 1);
  const std::int64_t tokens =
      prompts *
          whole(std::max<std::int64_t>(0, plan.data().sequence_length - options.max_new_tokens)) +
      rows * (whole(options.max_new_tokens) + nn::kPageTokens);
  return static_cast<std::int64_t>(
      static_cast<double>(2 * model.num_layers * kv_heads * channels * tokens) *
      cache_width(plan, options, channels));
}

/// The memory of the ranks besides the policy's.
class OtherModels {
 public:
  explicit OtherModels(const planner::Plan& plan)
      : policy_{.count = plan.ranks()}, bytes_(static_cast<std::size_t>(plan.ranks()), 0) {}

  /// Adds `bytes` to each of `ranks`; nothing: all of them.
  void count(const std::string& what,
             std::int64_t bytes,
             const std::optional<ModelRanks>& ranks = std::nullopt) {
    told_ += fmt::format("{}{} {}", told_.empty() ? "" : ", ", what, in_words(bytes));
    const ModelRanks on = ranks.value_or(policy_);
    for (int rank = on.first; rank < on.first + on.count; ++rank)
      bytes_[static_cast<std::size_t>(rank)] += bytes;
  }
  /// Returns the mean of the ranks of a host, the largest of any. `each`: ranks of a host.
  [[nodiscard]] std::int64_t mean(int each) const {
    std::int64_t most = 0;
    for (std::size_t first = 0; first < bytes_.size(); first += static_cast<std::size_t>(each)) {
      const std::size_t end = std::min(bytes_.size(), first + static_cast<std::size_t>(each));
      std::int64_t sum = 0;
      for (std::size_t rank = first; rank < end; ++rank)
        sum += bytes_[rank];
      const auto count = static_cast<std::int64_t>(end - first);
      most = std::max(most, (sum + count - 1) / count);
    }
    return most;
  }
  [[nodiscard]] std::string text() const {
    const auto [least, most] = std::ranges::minmax_element(bytes_);
    if (*least == *most) return told_;
    return told_ + fmt::format("; rank {} has most, {}, and rank {} least, {}",
                               most - bytes_.begin(),
                               in_words(*most),
                               least - bytes_.begin(),
                               in_words(*least));
  }

 private:
  static std::string in_words(std::int64_t bytes) {
    return text::bytes(static_cast<std::uint64_t>(bytes));
  }

  ModelRanks policy_;
  std::vector<std::int64_t> bytes_;
  std::string told_;
};

/// Returns the bytes of the rows of completions with some numbers for each token, on every rank.
std::int64_t rollout_bytes(const planner::Plan& plan, const tasks::RlOptions& options) {
  constexpr std::int64_t kNumbers = 8;
  return options.rollout_size(plan.recipe().global_batch) * plan.data().sequence_length * kNumbers *
         static_cast<std::int64_t>(sizeof(double));
}

}  // namespace

bool drops(const planner::Plan& plan) {
  const models::Adapter* const adapter = plan.model().adapter.get();
  if (adapter != nullptr && adapter->options.dropout > 0) return true;
  return std::ranges::any_of(plan.model().resolved.description.members(), [](const auto& member) {
    const auto& [key, value] = member;
    const bool random =
        key.find("drop") != std::string::npos || key.find("jitter") != std::string::npos;
    return random && value.is_number() && value.as_double() > 0;
  });
}

namespace {

/// Refuses settings that are not built and missing models, and counts the memory of reference,
/// reward models, critic, rollout and cache. Models may be on some ranks alone: Needs::beside is
/// the mean of the ranks of a host, the largest of any.
void place_rl(const planner::PlanWithData& plan,
              const planner::Hosts& hosts,
              planner::Needs& needs,
              std::vector<std::string>& notes) {
  const tasks::Rl* const task = tasks::as_rl(plan.data().task.get());
  if (task == nullptr) return;
  refuse_what_is_not_built(plan, *task);
  const tasks::RlOptions& options = task->options();
  require_checkpoints(plan, options);
  for (const tasks::RlReward& reward : task->rewards()) {
    if (reward.http) tasks::check_endpoint(*reward.http);
  }
  check_hosts(plan, options, hosts.ranks_of_each);
  TESSERA_REQUIRE(!options.models.reference.has_own_groups() || !is_base_of_policy(plan, options),
                  Config,
                  "rl.models.reference has a tensor or ranks, and the reference is the policy "
                  "without its adapter, on the policy's ranks",
                  "remove them, or name another reference in rl.reference");
  TESSERA_REQUIRE(!options.models.reference.offload.to_disk() || !is_base_of_policy(plan, options),
                  Config,
                  "rl.models.reference.offload: the reference is the policy without its adapter, "
                  "and has no weights of its own",
                  "remove it: zero_optimization.offload_param moves the policy's weights");
  OtherModels others(plan);
  const auto rests = [&needs](std::optional<planner::DiskNeed> one) {
    if (one) needs.disk.push_back(*std::move(one));
  };
  others.count("rollout", rollout_bytes(plan, options));
  others.count("cache of keys and values", cache_bytes(plan, options));
  // With rl.overlap, ranks that do not learn write the rollouts and have this copy.
  if (options.fuse_adapter && options.overlap == 0)
    others.count("weights with the adapter merged", fused_bytes(plan, rollout_tensor(plan)));
  if (regroups(plan)) {
    others.count(fmt::format("the policy's weights for rollouts, in which {} rank{} each layer",
                             rollout_tensor(plan),
                             rollout_tensor(plan) == 1 ? " has" : "s share"),
                 rollout_weight_bytes(plan));
  }
  if (task->has_reference() && !is_base_of_policy(plan, options)) {
    const models::Resolved reference =
        options.reference ? engine::find_model(*options.reference)->shape
                          : (plan.model().base ? *plan.model().base : plan.model().resolved);
    const ReadLayout layout = layout_of(options.models.reference, "reference", plan);
    require_share(plan, layout.ranks, reference, "reference");
    others.count(fmt::format("reference ({})", text_of(layout, plan)),
                 bytes_of(reference, layout, plan),
                 layout.ranks);
    rests(disk_need_of(reference, layout, "reference", "reference", plan));
  }
  std::optional<planner::PlanWithData> critic;
  std::optional<ModelRanks> ranks_of_critic;
  if (task->has_critic()) {
    critic = critic_plan(plan, options);
    ranks_of_critic = ranks_of(options.models.critic, "critic", plan);
    require_share(
        plan, ranks_of_critic, critic->model().resolved, "critic", critic->recipe().optimizer);
  }
  for (const tasks::RlReward& reward : task->rewards()) {
    if (!reward.model) continue;
    const models::Resolved model = engine::find_model(reward.model->from)->shape;
    if (critic && options.models.critic.shares_trunk() &&
        reward.model->from == *critic->model().options->from) {
      require_share(plan, ranks_of_critic, model, "reward model " + reward.name);
      others.count(
          fmt::format("reward model {} (its head; the trunk is the critic's)", reward.name),
          bytes_beside_trunk(model, *critic),
          ranks_of_critic);
      continue;
    }
    const ReadLayout layout = layout_of(options.models.reward, "reward", plan);
    require_share(plan, layout.ranks, model, "reward model " + reward.name);
    others.count(fmt::format("reward model {} ({})", reward.name, text_of(layout, plan)),
                 bytes_of(model, layout, plan),
                 layout.ranks);
    rests(disk_need_of(model, layout, "reward", "reward model " + reward.name, plan));
  }
  if (critic) {
    const planner::MemoryEstimate need = planner::estimate_memory(*critic);
    others.count(fmt::format("critic ({})", text_of_trained(*critic, ranks_of_critic, plan)),
                 need.parameters + need.gradients + need.optimizer,
                 ranks_of_critic);
    for (planner::DiskNeed& one : planner::disk_needs(*critic)) {
      if (one.what == "weights" && options.models.critic.offload.to_disk())
        one.key = "rl.models.critic.offload.nvme_path";
      one.what += " of the critic";
      one.ranks = ranks_of_critic ? ranks_of_critic->count : 0;
      rests(std::move(one));
    }
  }
  needs.beside += others.mean(hosts.ranks_of_each > 0 ? hosts.ranks_of_each : plan.ranks());
  notes.push_back("in addition to the policy a rank has: " + others.text());
  if (options.overlap == 0) return;
  notes.push_back(fmt::format(
      "rl.overlap: {} {} and {} only {} rollouts; each of the latter has {}: the policy's "
      "weights ({}), the rollout and the cache",
      plan.ranks(),
      plan.ranks() == 1 ? "rank learns" : "ranks learn",
      options.generators(),
      options.generators() == 1 ? "writes" : "write",
      text::bytes(static_cast<std::uint64_t>(generator_bytes(plan))),
      planner::precision_text(plan.layout(), plan.recipe())));
}

TESSERA_PLAN_RULE("rl", {place_rl});

}  // namespace

std::int64_t generator_bytes(const planner::Plan& plan) {
  const tasks::RlOptions& options = tasks::as_rl(plan.data().task.get())->options();
  const std::int64_t fused = options.fuse_adapter ? fused_bytes(plan, rollout_tensor(plan)) : 0;
  return planner::kProcessBytes + rollout_weight_bytes(plan) + fused +
         rollout_bytes(plan, options) + cache_bytes(plan, options);
}

std::uint64_t memory_beside_generators(const planner::Plan& plan,
                                       std::uint64_t available,
                                       int count) {
  const auto each = static_cast<std::uint64_t>(generator_bytes(plan)),
             all = static_cast<std::uint64_t>(count) * each;
  TESSERA_REQUIRE(
      static_cast<double>(all) < planner::kUsableMemory * static_cast<double>(available),
      Memory,
      fmt::format("the ranks that only write rollouts (rl.overlap) need {} x {}, and {} are free",
                  count,
                  text::bytes(each),
                  text::bytes(available)),
      "lower rl.rollout_ranks, rl.completions_at_once or data.sequence_length, or set rl.overlap "
      "to 0");
  return available - all;
}

}  // namespace tessera::rlhf

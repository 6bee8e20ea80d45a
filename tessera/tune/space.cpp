// SPDX-License-Identifier: Apache-2.0
#include "tessera/tune/space.h"

#include <algorithm>
#include <array>
#include <limits>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/config/key_dialect.h"
#include "tessera/config/overrides.h"
#include "tessera/nn/block.h"
#include "tessera/parallel/layout.h"
#include "tessera/parallel/pipeline/placement.h"
#include "tessera/planner/data_plan.h"
#include "tessera/planner/model_plan.h"
#include "tessera/planner/recipe.h"
#include "tessera/predict/many_ranks.h"

namespace tessera::tune {
namespace {

constexpr std::array<const char*, 3> kRecompute = {"none", "selective", "full"};

constexpr const char* kMicro = "train_micro_batch_size_per_gpu";
constexpr const char* kAccumulation = "gradient_accumulation_steps";
constexpr const char* kBucket = "zero_optimization.reduce_bucket_size";
constexpr const char* kExpert = "parallel.expert";
constexpr const char* kSplitExperts = "parallel.expert_tensor";
constexpr const char* kStateDevice = "zero_optimization.offload_optimizer.device";
constexpr const char* kWeightDevice = "zero_optimization.offload_param.device";

const char* device(bool on_disk) {
  return on_disk ? "nvme" : "none";
}

/// The smallest number of experts of a layer; 0: the model has none.
int experts_of(const planner::Plan& plan) {
  std::int64_t out = 0;
  for (const auto& info : nn::parameters_of(plan.model().resolved.model)) {
    if (!info->stacked()) continue;
    out = out == 0 ? info->shape.front() : std::min(out, info->shape.front());
  }
  return static_cast<int>(out);
}

json::Value integer(std::int64_t value) {
  return json::Value::integer(value);
}

void remove_key(json::Value& source, std::string_view key) {
  std::erase_if(source.members(), [&](const auto& member) { return member.first == key; });
}

}  // namespace

int Choice::data_experts() const {
  if (expert == 0) return 0;
  const bool over_tensor = mode == "1d" && !splits_experts;
  // In the order in which the plan tries them (parallel/expert_rules.cpp).
  for (const int over :
       {1, context, over_tensor ? tensor : 1, over_tensor ? context * tensor : 1}) {
    if (expert % over == 0 && data() % (expert / over) == 0) return expert / over;
  }
  return 0;
}

Choice choice_of(const planner::Plan& plan) {
  const parallel::Layout& layout = plan.layout();
  Choice out;
  out.ranks = layout.ranks();
  out.mode = config::name_of(parallel::kTensorLayouts, layout.tensor);
  out.tensor = static_cast<int>(layout.grid.size());
  out.sequence = layout.sequence;
  out.context = layout.context;
  out.ulysses = layout.context > 1 && layout.context_mode == nn::ContextMode::Ulysses;
  out.pipeline = layout.stages.stages;
  out.chunks = layout.stages.chunks;
  out.schedule = layout.schedule;
  out.zero = layout.zero_stage;
  out.micro = layout.micro_batch;
  out.accumulation = layout.accumulation;
  const std::vector<bool>& blocks = layout.recompute.blocks;
  const bool all = std::ranges::find(blocks, true) != blocks.end();
  out.recompute = all                        ? Recompute::Full
                  : layout.recompute.regions ? Recompute::Selective
                                             : Recompute::None;
  out.threads = layout.threads;
  if (layout.bucket != std::numeric_limits<std::int64_t>::max()) out.bucket = layout.bucket;
  if (experts_of(plan) > 0) {
    out.expert = layout.expert_ranks * (layout.experts_over_context ? out.context : 1) *
                 (layout.experts_over_tensor ? out.tensor : 1);
    out.splits_experts = layout.splits_experts;
  }
  if (layout.weight_offload)
    out.offload = Offload::Weights;
  else if (layout.offload)
    out.offload = Offload::Optimizer;
  return out;
}

std::vector<std::pair<std::string, json::Value>> keys_of(const Choice& choice) {
  const auto word = [](const std::string& text) { return json::Value::string(text); };
  std::vector<std::pair<std::string, json::Value>> out = {
      {"parallel.tensor.mode", word(choice.mode)},
      {"parallel.tensor.size", integer(choice.tensor)},
      {"parallel.sequence", json::Value::boolean(choice.sequence)},
      {"parallel.context.size", integer(choice.context)},
      {"parallel.context.mode", word(choice.ulysses ? "ulysses" : "ring")},
      {"parallel.pipeline.size", integer(choice.pipeline)},
      {"parallel.pipeline.schedule", word(choice.schedule)},
      {"parallel.pipeline.chunks", integer(choice.chunks)},
      {"zero_optimization.stage", integer(choice.zero)},
      {kMicro, integer(choice.micro)},
      {kAccumulation, integer(choice.accumulation)},
      {"activation_checkpointing.granularity",
       word(kRecompute[static_cast<std::size_t>(choice.recompute)])}};
  if (choice.threads > 0) out.emplace_back("run.threads_per_rank", integer(choice.threads));
  if (choice.bucket > 0) out.emplace_back(kBucket, integer(choice.bucket));
  if (choice.expert > 0) out.emplace_back(kExpert, integer(choice.expert));
  if (choice.splits_experts)
    out.emplace_back(kSplitExperts, integer(choice.mode == "1d" ? choice.tensor : 1));
  if (choice.offload != Offload::AsGiven) {
    out.emplace_back(kStateDevice, word(device(choice.offload != Offload::None)));
    out.emplace_back(kWeightDevice, word(device(choice.offload == Offload::Weights)));
  }
  return out;
}

json::Value with_choice(const json::Value& source, const Choice& choice) {
  json::Value out = source;
  // The three batch sizes follow from the choice, whose accumulation keeps the global batch.
  for (const char* key : {"train_batch_size", kMicro, kAccumulation})
    remove_key(out, key);
  for (auto& [key, value] : keys_of(choice))
    config::set_key(out, key, std::move(value), "tessera tune");
  return out;
}

std::vector<std::string> differences(const Choice& from, const Choice& choice) {
  const auto before = keys_of(from), after = keys_of(choice);
  std::vector<std::string> out;
  if (from.ranks != choice.ranks)
    out.push_back(fmt::format("-n {} -> {}", from.ranks, choice.ranks));
  for (const auto& [key, value] : after) {
    const auto old = std::ranges::find(before, key, &std::pair<std::string, json::Value>::first);
    if (old == before.end()) {
      out.push_back(fmt::format("{} {}", key, value.dump()));
    } else if (!(old->second == value)) {
      out.push_back(fmt::format("{} {} -> {}", key, old->second.dump(), value.dump()));
    }
  }
  return out;
}

std::string text_of(const Choice& choice) {
  std::string out = fmt::format("data {}", choice.data());
  if (choice.tensor > 1)
    out += fmt::format(" x tensor {}{}{}",
                       choice.tensor,
                       choice.mode == "1d" ? "" : " (" + choice.mode + ")",
                       choice.sequence ? " with sequence" : "");
  if (choice.context > 1)
    out += fmt::format(" x context {} ({})", choice.context, choice.ulysses ? "ulysses" : "ring");
  if (choice.pipeline > 1) {
    out += fmt::format(" x pipeline {} ({}", choice.pipeline, choice.schedule);
    out += choice.chunks > 1 ? fmt::format(", {} chunks)", choice.chunks) : ")";
  }
  out +=
      fmt::format(", ZeRO {}, micro-batch {} x {}", choice.zero, choice.micro, choice.accumulation);
  if (choice.recompute != Recompute::None)
    out += fmt::format(", recompute {}", kRecompute[static_cast<std::size_t>(choice.recompute)]);
  if (choice.threads > 0) out += fmt::format(", threads {}", choice.threads);
  if (choice.bucket > 0) out += fmt::format(", buckets {}", choice.bucket);
  if (choice.expert > 1) out += fmt::format(", experts on {} ranks", choice.expert);
  if (choice.offload == Offload::Optimizer) out += ", optimizer on disk";
  if (choice.offload == Offload::Weights) out += ", optimizer and weights on disk";
  return out;
}

json::Value to_json(const Choice& choice) {
  json::Value out = json::Value::object({{"ranks", integer(choice.ranks)}});
  for (auto& [key, value] : keys_of(choice))
    out[key] = std::move(value);
  return out;
}

Choice choice_from_json(const json::Value& value) {
  const auto need = [&](const char* key) -> const json::Value& {
    const json::Value* const found = value.find(key);
    TESSERA_REQUIRE(found != nullptr,
                    Format,
                    fmt::format("{}: the key {} is missing", value.place.text(), key),
                    "remove the file, and tune again");
    return *found;
  };
  const auto number = [&](const char* key) {
    const std::optional<std::int64_t> out =
        need(key).is_number() ? need(key).as_integer() : std::nullopt;
    TESSERA_REQUIRE(out && *out >= 0 && *out <= (std::int64_t{1} << 40),
                    Format,
                    fmt::format("{}: {}: expected a number", value.place.text(), key),
                    "remove the file, and tune again");
    return *out;
  };
  const auto small = [&](const char* key) {
    return static_cast<int>(std::min<std::int64_t>(number(key), 1 << 30));
  };
  Choice out;
  out.ranks = small("ranks");
  out.mode = need("parallel.tensor.mode").as_string();
  out.tensor = small("parallel.tensor.size");
  out.sequence = need("parallel.sequence").as_bool();
  out.context = small("parallel.context.size");
  out.ulysses = need("parallel.context.mode").as_string() == "ulysses";
  out.pipeline = small("parallel.pipeline.size");
  out.schedule = need("parallel.pipeline.schedule").as_string();
  out.chunks = small("parallel.pipeline.chunks");
  out.zero = small("zero_optimization.stage");
  out.micro = number(kMicro);
  out.accumulation = number(kAccumulation);
  const std::string& kind = need("activation_checkpointing.granularity").as_string();
  const auto at = std::ranges::find(kRecompute, kind);
  out.recompute =
      at == kRecompute.end() ? Recompute::None : static_cast<Recompute>(at - kRecompute.begin());
  if (value.find("run.threads_per_rank") != nullptr) out.threads = small("run.threads_per_rank");
  if (value.find(kBucket) != nullptr) out.bucket = number(kBucket);
  if (value.find(kExpert) != nullptr) out.expert = small(kExpert);
  out.splits_experts = value.find(kSplitExperts) != nullptr;
  if (value.find(kStateDevice) != nullptr) {
    const bool states = need(kStateDevice).as_string() == device(true);
    const bool weights = need(kWeightDevice).as_string() == device(true);
    out.offload = weights ? Offload::Weights : states ? Offload::Optimizer : Offload::None;
  }
  return out;
}

Fixed fixed_of(const std::vector<std::string>& keys) {
  const std::vector<std::pair<std::string, bool Fixed::*>> known = {
      {"parallel.tensor", &Fixed::tensor},
      {"parallel.sequence", &Fixed::tensor},
      {"parallel.context", &Fixed::context},
      {"parallel.pipeline.size", &Fixed::pipeline},
      {"parallel.pipeline.schedule", &Fixed::schedule},
      {"parallel.pipeline.chunks", &Fixed::schedule},
      {"zero_optimization.stage", &Fixed::zero},
      {kMicro, &Fixed::micro},
      {kAccumulation, &Fixed::micro},
      {"activation_checkpointing.granularity", &Fixed::recompute},
      {"run.threads_per_rank", &Fixed::threads},
      {kBucket, &Fixed::bucket},
      {kExpert, &Fixed::expert},
      {"zero_optimization.offload_optimizer", &Fixed::offload},
      {"zero_optimization.offload_param", &Fixed::offload}};
  Fixed out;
  std::vector<std::string> names;
  for (const auto& [name, member] : known)
    names.push_back(name);
  for (const std::string& key : keys) {
    bool found = false;
    for (const auto& [name, member] : known) {
      // A section fixes the keys in it, and a key within one that is fixed as a whole fixes that.
      if (name != key && !name.starts_with(key + ".") && !key.starts_with(name + ".")) continue;
      out.*member = found = true;
    }
    TESSERA_REQUIRE(found,
                    Config,
                    fmt::format("--fix {}: a search does not change this key", key),
                    text::suggestion(key, names));
  }
  return out;
}

void add(Fixed& fixed, const Fixed& more) {
  for (bool Fixed::*const member : {&Fixed::tensor,
                                    &Fixed::context,
                                    &Fixed::pipeline,
                                    &Fixed::schedule,
                                    &Fixed::zero,
                                    &Fixed::micro,
                                    &Fixed::recompute,
                                    &Fixed::threads,
                                    &Fixed::bucket,
                                    &Fixed::expert,
                                    &Fixed::offload})
    fixed.*member = fixed.*member || more.*member;
}

Space::Space(const json::Value& source,
             int ranks,
             std::string name,
             predict::DescribedMachine machine)
    : source_(config::key_dialect().spell_out(source)),
      name_(std::move(name)),
      machine_(std::move(machine)),
      base_(predict::plan_of_many(source_, ranks, name_)),
      own_(choice_of(base_)) {
  TESSERA_REQUIRE(!base_.data().sample.empty(),
                  Unsupported,
                  "the layouts of this task are not searched: the tensors of its samples are known "
                  "once the data is open",
                  "tessera bench step measures one layout");
  if (machine_.cores == 0) own_.threads = 0;  // threads of a device do not matter
  const json::Value* const elastic = base_.resolved().find("elasticity");
  const json::Value* const on =
      elastic != nullptr && elastic->is_object() ? elastic->find("enabled") : nullptr;
  TESSERA_REQUIRE(
      on == nullptr || !on->is_bool() || !on->as_bool(),
      Unsupported,
      "the layouts of an elastic training are not searched: elasticity chooses its batch",
      "set elasticity.enabled to false for the search");
  experts_ = experts_of(base_);
  find_offload(ranks);
}

/// Finds what may rest on a disk, and where: the configuration names the folders, whether they are
/// used or not.
void Space::find_offload(int ranks) {
  const auto has_folder = [&](const char* block) {
    const json::Value* const zero = source_.find("zero_optimization");
    const json::Value* const of =
        zero != nullptr && zero->is_object() ? zero->find(block) : nullptr;
    const json::Value* const path =
        of != nullptr && of->is_object() ? of->find("nvme_path") : nullptr;
    return path != nullptr && path->is_string() && !path->as_string().empty();
  };
  const bool states = has_folder("offload_optimizer"), weights = has_folder("offload_param");
  if (!states && !weights) return;
  json::Value source = source_;
  const auto set = [&](const char* key, json::Value value) {
    config::set_key(source, key, std::move(value), "tessera tune");
  };
  if (states) set(kStateDevice, json::Value::string(device(true)));
  if (weights) {
    set(kWeightDevice, json::Value::string(device(true)));
  }
  // What rests on a disk belongs to a shard.
  set("zero_optimization.stage", integer(weights ? 3 : std::max(1, own_.zero)));
  const planner::Plan all = predict::plan_of_many(source, ranks, name_);
  state_offload_ = all.layout().offload;
  weight_offload_ = all.layout().weight_offload;
  // Weights on a disk whose optimizer stays in memory are kept as they are.
  if (!state_offload_)
    own_.offload = Offload::AsGiven;
  else if (own_.offload == Offload::AsGiven)
    own_.offload = Offload::None;
}

double Space::offloaded_share() const {
  return state_offload_ ? state_offload_->share : 0.0;
}

planner::Plan Space::plan(const Choice& choice) {
  const int expert = std::max(1, choice.expert > 0 ? choice.data_experts() : 1);
  const Shape shape{choice.tensor,
                    choice.mode,
                    choice.sequence,
                    choice.context,
                    choice.ulysses,
                    std::max(1, choice.expert),
                    expert};
  auto [at, is_new] = shapes_.try_emplace(shape);
  if (is_new) {
    // One copy of the model, with the smallest batch of these ranks: the rest is set below.
    Choice one;
    one.tensor = choice.tensor;
    one.mode = choice.mode;
    one.sequence = choice.sequence;
    one.context = choice.context;
    one.ulysses = choice.ulysses;
    one.expert = choice.expert;
    one.splits_experts = choice.splits_experts;
    // What rests on a disk needs a stage; both are set below.
    if (own_.offload != Offload::AsGiven) one.offload = Offload::None;
    if (one.offload == Offload::AsGiven && base_.layout().weight_offload) one.zero = own_.zero;
    one.ranks = choice.tensor * choice.context * expert;
    one.micro = choice.mode == "1d" ? 1 : choice.micro;
    one.threads = own_.threads;
    try {
      at->second.first = planner::with(
          predict::plan_of_many(with_choice(source_, one), one.ranks, name_), base_.recipe());
    } catch (const Error& error) {
      at->second.second = error.what();
    }
  }
  if (!at->second.first) throw Error(Error::Kind::Config, at->second.second, "");
  const planner::Plan& model = *at->second.first;
  parallel::Layout layout = model.layout();
  const parallel::Layout& own = base_.layout();
  const parallel::PipelineOptions pipeline = {
      .size = choice.pipeline,
      .schedule = choice.schedule,
      .chunks = choice.chunks,
      .partition = own.partition.is_array() ? json::Value() : own.partition};
  auto [stages, first] = stages_.try_emplace({choice.pipeline, choice.schedule, choice.chunks});
  if (first) {
    config::Problems problems;
    stages->second = parallel::place_blocks(pipeline,
                                            model.model().resolved.model,
                                            model.data().sequence_length,
                                            problems,
                                            config::Origins());
    if (!problems.empty()) stages_.erase(stages);
    problems.raise();
  }
  layout.stages = stages->second;
  layout.schedule = choice.schedule;
  layout.partition = own.partition;
  layout.scatter_gather = own.scatter_gather;
  const bool groups = own.shard_ranks < own.data_ranks && choice.data() % own.shard_ranks == 0;
  layout.data_ranks = choice.data();
  layout.shard_ranks = groups ? own.shard_ranks : layout.data_ranks;
  layout.zero_stage = choice.zero;
  layout.expert_ranks = expert;
  if (choice.offload != Offload::AsGiven) {
    layout.offload = choice.offload == Offload::None ? std::nullopt : state_offload_;
    layout.weight_offload = choice.offload == Offload::Weights ? weight_offload_ : std::nullopt;
  }
  layout.micro_batch = choice.micro;
  layout.accumulation = choice.accumulation;
  layout.recompute.regions = choice.recompute == Recompute::Selective;
  const std::size_t blocks = model.model().resolved.model.blocks.size();
  layout.recompute.blocks.assign(blocks, choice.recompute == Recompute::Full);
  if (choice.threads > 0) layout.threads = choice.threads;
  if (choice.bucket > 0) layout.bucket = choice.bucket;
  return planner::with(model, std::move(layout));
}

double Space::working_bytes() const {
  return static_cast<double>(size_of(base_.layout().working));
}

double Space::sum_bytes() const {
  return static_cast<double>(size_of(base_.layout().sums));
}

planner::Plan Space::checked_plan(const Choice& choice) const {
  return predict::plan_of_many(with_choice(source_, choice), choice.ranks, name_);
}

}  // namespace tessera::tune

// SPDX-License-Identifier: Apache-2.0
#include "tessera/rlhf/critic.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/engine/engine.h"
#include "tessera/models/fingerprint.h"
#include "tessera/models/model_source.h"
#include "tessera/models/objective.h"
#include "tessera/nn/block.h"
#include "tessera/parallel/layout.h"
#include "tessera/parallel/tensor_rules.h"
#include "tessera/planner/adapter.h"
#include "tessera/planner/model_plan.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/recipe.h"
#include "tessera/planner/values.h"
#include "tessera/rlhf/layouts.h"
#include "tessera/text/tokenizer.h"

namespace tessera::rlhf {
namespace {

const std::string kPrefix = "critic.";
constexpr const char* kKey = "critic";        ///< in rl.models
constexpr const char* kBase = "critic_base";  ///< key of Critic::base_fingerprint_ in metadata

/// The critic's part of a checkpoint, under the names of a standalone model.
class Part final : public checkpoint::Source {
 public:
  explicit Part(const checkpoint::Checkpoint& whole) : whole_(whole) {}
  void read(const std::string& name,
            const mesh::Piece& want,
            DType to,
            std::byte* out) const override {
    const auto found =
        std::ranges::find(whole_.tensors(), kPrefix + name, &checkpoint::Checkpoint::Tensor::name);
    TESSERA_ASSERT(found != whole_.tensors().end());
    const auto size = static_cast<std::size_t>(want.end - want.begin) * size_of(to);
    const std::vector<checkpoint::PieceBytes> pieces = {
        {found->name, to, found->shape, want, {out, size}}};
    whole_.load(pieces);
  }

 private:
  const checkpoint::Checkpoint& whole_;
};

models::ObjectiveChoice objective_of(const tasks::RlOptions& options) {
  return {.name = "value",
          .options = json::Value::object(
              {{"clip_range", json::Value::number(options.critic.clip_range)}})};
}

/// Adds the adapter that `written` describes as the section `adapter` does; null: none.
void add_adapter(const json::Value& written,
                 std::uint64_t seed,
                 planner::ModelPlan& model,
                 parallel::Layout& layout) {
  if (written.is_null()) return;
  models::AdapterOptions options;
  struct Section {
    models::AdapterOptions& adapter;
    void describe(config::Fields& fields) { fields.section("adapter", adapter, ""); }
  } section{options};
  config::Problems found, all;
  config::Origins origins;
  std::vector<std::string> notes;  // those of the policy's adapter are enough
  config::read(json::Value::object({{"adapter", written}}), section, found, origins);
  if (found.empty()) planner::plan_adapter(options, model, layout, notes, found, origins);
  all.adopt(found, "rl.models.critic");
  all.raise();
  planner::plan_adapter_weights(model, options.from, seed);
}

/// Freezes what a critic shares with a reward model: with an adapter its base, else everything
/// before the objective.
void share_trunk(planner::ModelPlan& model, const parallel::Layout& layout) {
  const auto refuse = [](const std::string& what, const std::string& fix) {
    throw Error(Error::Kind::Unsupported,
                "rl.models.critic.trunk reward: " + what +
                    ", so that the trunk of the reward "
                    "model would be another one",
                fix);
  };
  if (model.rules.packed)
    refuse("the adapter keeps it in fewer bits", "remove quantize_base from the critic's adapter");
  if (layout.gathers_weights() && layout.weight_offload)
    refuse("its weights rest on a disk",
           "set rl.models.critic.offload.device to \"none\", or trunk to \"own\"");
  if (layout.frozen_gather != parallel::GatherForm::Values) {
    refuse("frozen weights are sent in fewer bits",
           "remove zero_optimization.zero_quantized_nontrainable_weights");
  }
  std::set<std::string> head;
  for (const auto& info : nn::declared_by(model.resolved.model.blocks.back()))
    head.insert(info->name);
  if (model.adapter != nullptr) {
    for (const std::string& name : model.adapter->trained) {
      if (!head.contains(name)) {
        refuse("the adapter trains " + name,
               "remove bias and modules_to_save from the critic's adapter");
      }
    }
    return;
  }
  model.rules.frozen = [head = std::move(head),
                        also = model.rules.frozen](const std::string& name) {
    return !head.contains(name) || (also && also(name));
  };
  model.base_fingerprint = models::fingerprint_of(model.resolved, model.weights);
}

/// The model of a critic without its adapter.
planner::ModelPlan critic_model(const planner::PlanWithData& policy,
                                const tasks::RlOptions& options) {
  planner::ModelPlan out = policy.model();
  // Without the policy's adapter.
  out.adapter = nullptr;
  out.base.reset();
  out.base_fingerprint.clear();
  out.rules.packed = {};
  out.rules.packing = {};
  const std::optional<std::string> from =
      options.critic.from ? options.critic.from : policy.model().options->from;
  const models::ObjectiveChoice objective = objective_of(options);
  std::optional<models::ModelSource> source;
  if (from) source = models::open_model_source(*from);
  if (options.critic.from) {
    out.options = source->model;
    out.options->from = from;
    config::Problems problems;
    out.resolved = models::resolve(source->model,
                                   planner::tokenizer_of(policy)->size(),
                                   std::nullopt,
                                   problems,
                                   {},
                                   objective);
    problems.raise();
    TESSERA_REQUIRE(models::source_tokenizer(*source)->fingerprint() ==
                            planner::tokenizer_of(policy)->fingerprint() &&
                        out.resolved.max_positions >= planner::sequence_length_of(policy),
                    Config,
                    fmt::format("the critic {} reads other tokens than the policy writes, or fewer "
                                "of them",
                                *from),
                    "name a model with the policy's tokenizer and as many positions");
  } else {
    if (policy.model().base) out.resolved = *policy.model().base;
    out.resolved.model =
        models::with_objective(out.resolved.trunk, objective.name, objective.options);
    out.resolved.objective = objective;
  }
  nn::declare_all(out.resolved.model);
  out.weights = nullptr;
  if (source) {
    std::vector<std::string> notes;  // a critic's head is expected to be newly initialized
    out.weights = models::first_weights(
        *source, out.resolved, static_cast<std::uint64_t>(policy.recipe().seed), notes);
  }
  return out;
}

}  // namespace

planner::PlanWithData critic_plan(const planner::PlanWithData& policy,
                                  const tasks::RlOptions& options) {
  const std::optional<ModelRanks> ranks = ranks_of(options.models.critic, kKey, policy);
  parallel::Layout layout = layout_of_trained(
      options.models.critic, ranks, policy.layout(), policy.recipe().global_batch);
  planner::ModelPlan model = critic_model(policy, options);
  if (ranks) layout.grid = parallel::ranks_in_a_row(model.resolved.model, ranks->tensor);
  add_adapter(options.models.critic.adapter,
              static_cast<std::uint64_t>(policy.recipe().seed),
              model,
              layout);
  if (options.models.critic.shares_trunk()) share_trunk(model, layout);
  layout.stages = {};
  if (layout.recompute.blocks.size() != model.resolved.model.blocks.size())
    layout.recompute.blocks.clear();
  planner::Recipe recipe = policy.recipe();
  if (options.critic.lr) recipe.optimizer.params["lr"] = json::Value::number(*options.critic.lr);
  return with(with(with(policy, std::move(layout)), std::move(model)), std::move(recipe));
}

Critic::Critic(const planner::PlanWithData& policy,
               const tasks::RlOptions& options,
               comm::World& world)
    : Critic(critic_plan(policy, options),
             options.models.critic,
             ranks_of(options.models.critic, kKey, policy),
             world) {}

Critic::Critic(const planner::PlanWithData& plan,
               const tasks::RlCriticModel& how,
               const std::optional<ModelRanks>& ranks,
               comm::World& world)
    : all_(world),
      ranks_(std::make_shared<ModelWorld>(world, ranks, plan.model().resolved, kCriticWorld)),
      global_batch_(plan.recipe().global_batch),
      micro_batch_(plan.layout().micro_batch),
      base_fingerprint_(plan.model().base_fingerprint),
      lends_(how.shares_trunk() ? *plan.model().options->from : "") {
  if (ranks_->is_here())
    state_ =
        std::make_unique<engine::TrainState>(engine::train_state_options(plan), ranks_->world());
}

void Critic::initialize_weights() {
  if (state_ != nullptr) state_->initialize_weights();
}

Lender Critic::lender() {
  if (lends_.empty()) return {};
  if (state_ != nullptr) state_->wait();
  return {.from = lends_, .ranks = ranks_, .model = state_ != nullptr ? &state_->model() : nullptr};
}

std::vector<double> Critic::own_values(const Rows& rows) {
  if (state_ == nullptr)
    return std::vector<double>(static_cast<std::size_t>(rows.labels_BT.numel()), 0.0);
  state_->wait();
  const at::Tensor made_BT =
      output_of_rows(state_->executor(), ranks_->world(), rows, micro_batch_, "values");
  const auto* const values = made_BT.const_data_ptr<double>();
  return {values, values + made_BT.numel()};
}

void Critic::share_values(std::vector<double>& values) const {
  ranks_->share(values, "values of the critic");
}

void Critic::expect(at::Tensor values_BT, at::Tensor returns_BT) {
  values_BT_ = std::move(values_BT);
  returns_BT_ = std::move(returns_BT);
}

void Critic::learn(const Rows& rows,
                   const at::Tensor& labels_BT,
                   std::int64_t first,
                   engine::Metrics& metrics) {
  // Loss and norm of the gradient.
  std::vector<double> made = {0.0, 0.0};
  if (state_ != nullptr) made = update(rows, labels_BT, first);
  ranks_->share(made, "the update of the critic");
  const double tokens = labels_BT.ge(0).sum().item<double>();
  metrics.push_back({"critic_loss", made[0], tokens});
  metrics.push_back({"critic_gnorm", made[1], 1.0});
}

std::vector<double> Critic::update(const Rows& rows,
                                   const at::Tensor& labels_BT,
                                   std::int64_t first) {
  const comm::Group& group = ranks_->world().group(mesh::AxisSet::dp());
  const std::int64_t each = micro_batch_ * group.size();
  const int micros = state_->round_micros(static_cast<int>((global_batch_ + each - 1) / each));
  const engine::StepResult result = state_->step(micros, [&](int micro) {
    all_.show_life();  // a rank that has the critic alone posts nothing meanwhile
    const std::int64_t begin =
        std::min(global_batch_,
                 (static_cast<std::int64_t>(micro) * group.size() + group.index) * micro_batch_);
    const std::int64_t end = std::min(global_batch_, begin + micro_batch_),
                       columns = rows.columns(first + begin, end - begin);
    const auto part = [&](const at::Tensor& of_BT) {
      return of_BT.narrow(0, first + begin, end - begin).narrow(1, 0, columns).contiguous();
    };
    nn::Batch batch;
    batch.set("input_ids", part(rows.input_ids_BT));
    batch.set("labels", part(labels_BT));
    batch.set("old_values", part(values_BT_));
    batch.set("returns", part(returns_BT_));
    for (std::int64_t i = begin; i < end; ++i)
      batch.sample_ids.push_back(state_->steps() * global_batch_ + i);
    return batch;
  });
  return {result.loss, result.grad_norm};
}

std::vector<checkpoint::PieceBytes> Critic::pieces() {
  if (state_ == nullptr) return {};
  std::vector<checkpoint::PieceBytes> out = state_->pieces();
  for (checkpoint::PieceBytes& piece : out)
    piece.name.insert(0, kPrefix);
  return out;
}

void Critic::release_pieces() {
  if (state_ != nullptr) state_->release_pieces();
}

void Critic::describe(json::Value& state) const {
  if (!base_fingerprint_.empty()) state[kBase] = json::Value::string(base_fingerprint_);
}

void Critic::load(const checkpoint::Checkpoint& checkpoint) {
  const json::Value* const rl = checkpoint.meta().extra.find("rl");
  const json::Value* const base = rl != nullptr ? rl->find(kBase) : nullptr;
  const std::string saved = base != nullptr && base->is_string() ? base->as_string() : "";
  TESSERA_REQUIRE(saved == base_fingerprint_,
                  Config,
                  fmt::format("the critic of {} is an adapter or a head of other weights than the "
                              "critic begins with now",
                              checkpoint.folder().string()),
                  "restore rl.critic.from, rl.models.critic and the model that they name, or start "
                  "over with --resume never");
  std::vector<checkpoint::Checkpoint::Tensor> tensors;
  for (checkpoint::Checkpoint::Tensor tensor : checkpoint.tensors()) {
    if (!tensor.name.starts_with(kPrefix)) continue;
    tensor.name.erase(0, kPrefix.size());
    tensors.push_back(std::move(tensor));
  }
  TESSERA_REQUIRE(!tensors.empty(),
                  Format,
                  fmt::format("{} holds no critic", checkpoint.folder().string()),
                  "resume from a checkpoint of a run with a critic, or start over with --resume "
                  "never");
  if (state_ == nullptr) return;
  state_->load(checkpoint::Checkpoint(checkpoint.folder(),
                                      checkpoint.meta(),
                                      std::move(tensors),
                                      std::make_shared<Part>(checkpoint)));
}

}  // namespace tessera::rlhf
